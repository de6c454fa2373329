package blueprint

import (
	"fmt"
	"slices"
	"strings"
)

// maxSuggestedLength is the maximum length of a name for which a suggestion is computed.
const maxSuggestedLength = 64

// suggest returns the end of a message that suggests a similar name, or "". A name that differs only in case is
// preferred. Otherwise, the first name with the smallest edit distance is suggested. The distance must not exceed 2 or
// a third of the length of the name.
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
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// editDistance returns the number of bytes to insert, delete, replace or transpose.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	var earlier, last []int // the two rows before
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
