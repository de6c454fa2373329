package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The steps in this file are for the example sharded.

// division contains the shards of several processes, in the same order.
type division struct{ led, standby [][]int }

// leadAll waits until each of the shards is led by exactly one of the processes, according to their output.
func leadAll(shards int, names ...string) step {
	return func(ctx context.Context, s *environment) error {
		return s.waitForDivision(ctx, names, func(d division) error { return eachOnce("leader", shards, d.led) })
	}
}

// divide waits until, in addition, each shard has a standby, and no process leads more than one shard more than another
// one.
func divide(shards int, names ...string) step {
	return func(ctx context.Context, s *environment) error {
		return s.waitForDivision(ctx, names, func(d division) error {
			shorter := func(a, b []int) int { return len(a) - len(b) }
			if len(slices.MaxFunc(d.led, shorter)) > len(slices.MinFunc(d.led, shorter))+1 {
				return errors.New("the division is uneven")
			}
			return errors.Join(eachOnce("leader", shards, d.led), eachOnce("standby", shards, d.standby))
		})
	}
}

// eachOnce returns an error unless each of the shards is in exactly one of the lists.
func eachOnce(role string, shards int, lists [][]int) error {
	found := map[int]int{}
	for _, index := range slices.Concat(lists...) {
		found[index]++
	}
	for index := range shards {
		if n := found[index]; n != 1 {
			return fmt.Errorf("shard %d has %d processes as its %s", index, n, role)
		}
	}
	return nil
}

// waitForDivision waits until check accepts the shards of the processes. It prints them.
func (s *environment) waitForDivision(ctx context.Context, names []string, check func(division) error) error {
	description, problem := "", error(nil)
	err := eventually(ctx, func(context.Context) (bool, error) {
		var d division
		var parts []string
		for _, name := range names {
			led, standby, err := s.processes[name].shards()
			if err != nil {
				return false, err
			}
			d.led, d.standby = append(d.led, led), append(d.standby, standby)
			parts = append(parts, fmt.Sprint(name, " leads ", led, " and is the standby for ", standby))
		}
		description, problem = strings.Join(parts, ", "), check(d)
		return problem == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w: %w", description, problem, err)
	}
	s.printf("# %s", description)
	return nil
}

var shardsLine = regexp.MustCompile(`leads shards (\[.*\]), standby for (\[.*\])$`)

// shards returns the shards that the process leads, and those that it is the standby for. It parses the last line that
// lists them.
func (p *process) shards() (led, standby []int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range slices.Backward(p.lines) {
		if match := shardsLine.FindStringSubmatch(line); match != nil {
			led, err = numbers(match[1])
			standby, err2 := numbers(match[2])
			return led, standby, errors.Join(err, err2)
		}
	}
	return nil, nil, nil
}

// numbers parses a list such as "[1 2]".
func numbers(list string) (all []int, err error) {
	for _, field := range strings.Fields(strings.Trim(list, "[]")) {
		n, err := strconv.Atoi(field)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// marked waits until each object in a manifest is marked by one of the processes, which have reconciled it.
func marked(file string, names ...string) step {
	return func(ctx context.Context, s *environment) error {
		objects, err := s.read(file)
		if err != nil {
			return err
		}
		for _, object := range objects {
			resource, err := s.resource(ctx, object)
			if err != nil {
				return err
			}
			by := ""
			err = eventually(ctx, func(ctx context.Context) (bool, error) {
				current, err := resource.Get(ctx, object.GetName(), metav1.GetOptions{})
				if err != nil {
					return false, err
				}
				by = current.GetAnnotations()["sharded.example.com/reconciled-by"]
				pod, _, _ := strings.Cut(by, "_")
				return slices.Contains(names, pod), nil
			})
			if err != nil {
				return fmt.Errorf("%s/%s is marked by %q, not by one of %q: %w",
					object.GetKind(), object.GetName(), by, names, err)
			}
		}
		s.printf("# all objects in examples/%s are marked by %s", file, strings.Join(names, " or "))
		return nil
	}
}
