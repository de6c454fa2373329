package blueprint

import (
	"slices"
	"strings"
)

// ordered brings resources into an order in which each comes after those that it refers to, and otherwise into that of the
// spec. The error is Problems, with one cycle if there are any.
func ordered(resources []*resource) ([]*resource, error) {
	out := make([]*resource, 0, len(resources))
	done := make(map[*resource]bool, len(resources))
	for len(out) < len(resources) {
		next := slices.IndexFunc(resources, func(r *resource) bool {
			return !done[r] && !slices.ContainsFunc(r.needs, func(o *resource) bool { return !done[o] })
		})
		if next < 0 {
			return nil, cycle(resources, done)
		}
		done[resources[next]] = true
		out = append(out, resources[next])
	}
	return out, nil
}

// cycle names one: whoever follows what is not done comes to where they have been.
func cycle(resources []*resource, done map[*resource]bool) Problems {
	at := resources[slices.IndexFunc(resources, func(r *resource) bool { return !done[r] })]
	var walked []*resource
	for !slices.Contains(walked, at) {
		walked = append(walked, at)
		at = at.needs[slices.IndexFunc(at.needs, func(r *resource) bool { return !done[r] })]
	}
	var ids []string
	for _, r := range append(walked[slices.Index(walked, at):], at) {
		ids = append(ids, r.id)
	}
	return Problems{{Path: at.path, Reason: "refer to each other in a cycle: " + strings.Join(ids, " -> ")}}
}
