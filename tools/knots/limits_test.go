package main

import (
	"fmt"
	"strings"
	"testing"
)

func pairs(n int) (knots []knot) {
	for i := range n {
		knots = append(knots, knot{a: fmt.Sprint("a", i), b: fmt.Sprint("b", i), byA: []string{"x"}, byB: []string{"y"}})
	}
	return knots
}

func TestCompare(t *testing.T) {
	for name, test := range map[string]struct {
		limits string
		want   []string // parts of the error; none if there is no error
	}{
		"the numbers are the limits": {limits: "# a comment\n\n2 some\n"},
		"too many pairs": {
			limits: "1 some\n", want: []string{"some: pairs of types that use each other: 2, at most 1", "  a0, b0\n", "a1: x"},
		},
		"pairs without a limit": {want: []string{"some: pairs of types that use each other: 2, at most 0", "  a1, b1\n"}},
		"fewer pairs": {
			limits: "3 some\n", want: []string{"some: the number of pairs has sunk to 2: lower its maximum of 3"},
		},
		"a limit for no pairs": {
			limits: "2 some\n1 none\n", want: []string{"none: no pairs any more: remove its line"},
		},
		"an unknown package": {limits: "2 some\n1 other\n", want: []string{"other: not one of the packages"}},
		"no number":          {limits: "2 some\nother\n", want: []string{`line 2: want a positive number`}},
		"a limit of none":    {limits: "2 some\n0 none\n", want: []string{`line 2: want a positive number`}},
	} {
		t.Run(name, func(t *testing.T) {
			limits, err := parseLimits(test.limits)
			if err == nil {
				err = compare([]knotted{{"none", nil}, {"some", pairs(2)}}, limits)
			}
			if (err != nil) != (len(test.want) > 0) {
				t.Fatalf("got the error %v", err)
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got %q, want %q in it", err, part)
				}
			}
		})
	}
}
