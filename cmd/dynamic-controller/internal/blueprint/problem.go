package blueprint

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Problem is an error in a Blueprint or in the children of an instance.
type Problem struct {
	Path       string // such as spec.resources[2].template.spec.replicas
	Expression string // the expression that failed, if any
	Reason     string
}

func (p Problem) String() string {
	s := Cut(p.Path, maxPath)
	if p.Expression != "" {
		s += fmt.Sprintf(": ${%s}", Cut(strings.Join(strings.Fields(p.Expression), " "), maxQuoted))
	}
	return s + ": " + Cut(p.Reason, maxReason)
}

// Problems is a list of problems, in the order of the spec.
type Problems []Problem

// Error returns the first ten problems and the number of remaining problems. The text has at most half the length that
// a condition message can have.
func (p Problems) Error() string {
	var lines []string
	for _, problem := range p[:min(len(p), maxProblems)] {
		lines = append(lines, problem.String())
	}
	if more := len(p) - maxProblems; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// Cut returns s if it has at most n bytes. Otherwise, it returns the first n bytes of s, without a partial character,
// and an ellipsis. It replaces invalid UTF-8 with question marks.
func Cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= n {
		return s
	}
	s = s[:n]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "..."
}

// collector collects problems, up to enoughProblems.
type collector struct{ problems Problems }

// enoughProblems is the number of problems after which compilation stops.
const enoughProblems = 200

func (c *collector) add(path, expression, format string, args ...any) {
	if !c.full() {
		c.problems = append(c.problems, Problem{Path: path, Expression: expression, Reason: fmt.Sprintf(format, args...)})
	}
}

func (c *collector) full() bool { return len(c.problems) >= enoughProblems }

func (c *collector) err() error {
	if len(c.problems) == 0 {
		return nil
	}
	return c.problems
}

// sorted sorts the problems by path and returns them.
func (p Problems) sorted() Problems {
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Reason, b.Reason))
	})
	return p
}
