package blueprint

import "strings"

// maxNear is how long a name may be that is compared with others.
const maxNear = 64

// nearest is the name that somebody may have meant: one that is the same but for case, or the first of those of which the
// fewest letters are others, missing or too many, two at most and no more than every third. It is empty if there is none.
func nearest(name string, names []string) string {
	best, least := "", min(len(name)/3, 2)+1
	if len(name) > maxNear {
		return ""
	}
	for _, other := range names {
		if strings.EqualFold(name, other) {
			return other
		}
		if len(other) > len(name)+least {
			continue
		}
		if d := distance(name, other); d < least {
			best, least = other, d
		}
	}
	return best
}

// distance is that of Levenshtein, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			above := row[j+1]
			if a[i] == b[j] {
				row[j+1] = corner
			} else {
				row[j+1] = 1 + min(corner, above, row[j])
			}
			corner = above
		}
	}
	return row[len(b)]
}
