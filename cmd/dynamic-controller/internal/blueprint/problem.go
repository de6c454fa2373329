package blueprint

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Problem is something wrong with a Blueprint or with what becomes of an instance.
type Problem struct {
	Path       string // where, as spec.resources[2].template.spec.replicas
	Expression string // the expression that is wrong, if one is
	Reason     string
}

func (p Problem) String() string {
	s := cut(p.Path, maxPath)
	if p.Expression != "" {
		s += fmt.Sprintf(": ${%s}", cut(strings.Join(strings.Fields(p.Expression), " "), maxQuoted))
	}
	return s + ": " + cut(p.Reason, maxReason)
}

// Problems are all that is wrong, in the order of the spec.
type Problems []Problem

// Error tells the first ten, in less than half of what a condition's message may have, and how many more there are.
func (p Problems) Error() string {
	var lines []string
	for _, problem := range p[:min(len(p), maxProblemsTold)] {
		lines = append(lines, problem.String())
	}
	if more := len(p) - maxProblemsTold; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// cut is the string if it is no longer than n bytes, and its beginning otherwise.
func cut(s string, n int) string {
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

// collector collects problems where there may be many.
type collector struct{ problems Problems }

// enoughProblems is when looking for more is of no use to anybody.
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

// sorted brings problems that come in no order into one.
func (p Problems) sorted() Problems {
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Reason, b.Reason))
	})
	return p
}
