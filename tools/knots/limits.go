package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// check compares the packages with the limits in a file.
func check(file string, pkgs []knotted) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the limits: %w", err)
	}
	limits, err := parseLimits(string(data))
	if err == nil {
		err = compare(pkgs, limits)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// parseLimits returns the maximum number of pairs by package. Each line of the text has a number and the path of a
// package within the module. Empty lines, and those that begin with #, are ignored.
func parseLimits(text string) (map[string]int, error) {
	limits := map[string]int{}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var limit int
		var path string
		if _, err := fmt.Sscanf(line, "%d %s", &limit, &path); err != nil || limit < 1 {
			return nil, fmt.Errorf("line %d: want a positive number and a package, got %q", i+1, line)
		}
		limits[path] = limit
	}
	return limits, nil
}

// compare returns an error that lists the packages whose number of pairs is not the maximum. Packages without a limit
// must have none.
func compare(pkgs []knotted, limits map[string]int) error {
	var problems []error
	known := map[string]bool{}
	for _, pkg := range pkgs {
		known[pkg.path] = true
		switch n, limit := len(pkg.knots), limits[pkg.path]; {
		case n > limit:
			problems = append(problems, fmt.Errorf("%s: pairs of types that use each other: %d, at most %d:\n%s",
				pkg.path, n, limit, strings.TrimSuffix(describe(pkg.knots, true), "\n")))
		case n == 0 && limit > 0:
			problems = append(problems, fmt.Errorf("%s: no pairs any more: remove its line", pkg.path))
		case n < limit:
			problems = append(problems, fmt.Errorf("%s: the number of pairs has sunk to %d: lower its maximum of %d",
				pkg.path, n, limit))
		}
	}
	for path := range limits {
		if !known[path] {
			problems = append(problems, fmt.Errorf("%s: not one of the packages: remove its line", path))
		}
	}
	return errors.Join(problems...)
}
