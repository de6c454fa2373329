package blueprint

import (
	"fmt"
	"slices"
	"strings"
)

// maxSuggestedLength is the maximum length of a name for which suggest looks for similar names.
const maxSuggestedLength = 64

// minSuggestedPrefix is the minimum length of a name for which suggest looks for longer names that begin with it.
// maxSuggestedNames is the maximum number of these longer names.
const minSuggestedPrefix, maxSuggestedNames = 3, 3

// suggest returns a suggestion to append to a message, or "" if no name is similar. It prefers a name that differs only
// in case. If there is no such name, it suggests the name with the smallest edit distance, which must be at most 2 and
// at most a third of the length. If there is no such name either, it suggests the first few names that begin with the
// given name.
func suggest(name string, names []string) string {
	if len(name) > maxSuggestedLength {
		return ""
	}
	best, least := "", min(len(name)/3, 2)+1
	for _, other := range names {
		if strings.EqualFold(name, other) {
			best = other
			break
		}
		if len(other) > len(name)+least {
			continue
		}
		if d := editDistance(name, other); d < least {
			best, least = other, d
		}
	}
	meant := []string{best}
	if best == "" {
		meant = withPrefix(name, names)
	}
	if len(meant) == 0 {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", strings.Join(meant, " or "))
}

// withPrefix returns the first few names with the given prefix, ignoring case.
func withPrefix(prefix string, names []string) (found []string) {
	if len(prefix) < minSuggestedPrefix {
		return nil
	}
	for _, name := range names {
		if len(found) < maxSuggestedNames && strings.HasPrefix(strings.ToLower(name), strings.ToLower(prefix)) {
			found = append(found, name)
		}
	}
	return found
}

// editDistance returns the minimum number of byte insertions, deletions, replacements and transpositions that turn a
// into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	var earlier, last []int // the previous two rows
	for i := range len(a) {
		earlier, last, row = last, row, slices.Repeat([]int{i + 1}, len(b)+1)
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

// Suggest returns a suggestion to append to a message about an unknown name, or "" if no name is similar.
func Suggest(name string, names []string) string { return suggest(name, names) }
