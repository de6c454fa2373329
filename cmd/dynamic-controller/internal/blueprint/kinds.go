package blueprint

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Template is what is known of a template without an instance.
type Template struct {
	ID         string
	Path       string // as in problems: spec.resources[2].template
	GVK        schema.GroupVersionKind
	Namespaced bool // as far as is known: see Options
	Needs      []string
}

// Templates lists what instances become, each after those that it refers to. Taken backwards it is the order to delete in.
func (c *Compiled) Templates() []Template {
	out := make([]Template, len(c.resources))
	for i, r := range c.resources {
		out[i] = Template{ID: r.id, Path: r.path, GVK: r.gvk, Namespaced: r.namespaced}
		for _, o := range r.needs {
			out[i].Needs = append(out[i].Needs, o.id)
		}
	}
	return out
}

// Kinds lists the kinds of the objects that instances become, each once and in order: what has to be there, may have to be
// written, and is watched. One may be defined by another Blueprint.
func (c *Compiled) Kinds() []schema.GroupVersionKind {
	var out []schema.GroupVersionKind
	for _, r := range c.resources {
		out = append(out, r.gvk)
	}
	slices.SortFunc(out, func(a, b schema.GroupVersionKind) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(out)
}
