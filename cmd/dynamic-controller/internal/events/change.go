package events

import (
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HasChanged reports whether the status or the reason of a condition has changed. before is nil for a new condition.
func HasChanged(before, after *metav1.Condition) bool {
	return before == nil || before.Status != after.Status || before.Reason != after.Reason
}

// IsNewProblem reports whether the status, the reason or the message of a condition has changed. While
// observedGeneration stays the same, words that contain digits are not compared, because times, counts and identifiers
// can differ in every attempt.
func IsNewProblem(before, after *metav1.Condition) bool {
	switch {
	case HasChanged(before, after):
		return true
	case before.ObservedGeneration != after.ObservedGeneration:
		return before.Message != after.Message
	default:
		return withoutNumbers(before.Message) != withoutNumbers(after.Message)
	}
}

var wordWithDigit = regexp.MustCompile(`\S*\d\S*`)

func withoutNumbers(message string) string {
	return wordWithDigit.ReplaceAllLiteralString(message, "0")
}
