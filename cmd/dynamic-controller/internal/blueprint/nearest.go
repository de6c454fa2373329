package blueprint

import "strings"

// maxNear is how long a name may be that is compared with others.
const maxNear = 64

// nearest is the name that somebody may have meant: one that is the same but for case, or the first of those of which the
// fewest letters are wrong (see distance), two at most and no more than every third. It is empty if there is none.
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

// distance counts the letters, in bytes, that are others, missing, too many, or in the other order than the one before.
func distance(a, b string) int {
	// How far the beginnings of b are from that of a, from the one before, and from the one before that.
	var earlier, last []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		earlier, last, row = last, row, make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			other := last[j]
			if a[i] != b[j] {
				other++
			}
			row[j+1] = min(other, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], earlier[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
