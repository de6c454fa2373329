package blueprint

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// A resource with forEach is a collection. It has one object for each combination of the items of its lists. The last
// list varies fastest. Objects are identified by kind, namespace and name, so reordering the items does not affect
// them. A collection is rendered completely or not at all. If a list cannot be evaluated or an object cannot be
// rendered, all existing objects are left unchanged.

// each is the variable that refers to a single object in the readyWhen of a collection.
const each = "each"

// iterator is a template variable that iterates over the items of a list.
type iterator struct {
	name string
	list *expressionAt
}

// iterators parses forEach.
func (p *parsing) iterators(forEach []map[string]string, path string, owner int) (out []iterator) {
	if len(forEach) > MaxIterators {
		p.problems.add(path, "", "has more than %d items", MaxIterators)
		forEach = forEach[:MaxIterators]
	}
	for i, entry := range forEach {
		at := fmt.Sprintf("%s[%d]", path, i)
		if len(entry) != 1 {
			p.problems.add(at, "", "must have exactly one entry: a variable name and a list expression")
			continue
		}
		for name, text := range entry {
			out = append(out, iterator{name, p.expression(unwrapped(text), child(at, name), owner, iterates)})
		}
	}
	return out
}

// checkIterators checks the variable names of a collection and removes invalid variables.
func (r *resource) checkIterators(ids map[string]*resource, c *collector) {
	valid := r.forEach[:0]
	for _, it := range r.forEach {
		path := it.list.path
		switch other := ids[it.name]; {
		case !validID.MatchString(it.name):
			c.add(path, "", "%q is not a valid name; use a letter followed by at most 62 letters, digits or underscores",
				Cut(it.name, maxQuoted))
		case slices.Contains(reservedIDs, it.name):
			c.add(path, "", "%q is reserved; use a different name%s", it.name, quoteHint(it.name))
		case other != nil:
			c.add(path, "", "%q is the id of spec.resources[%d]; use a different name", it.name, other.index)
		case slices.ContainsFunc(valid, func(v iterator) bool { return v.name == it.name }):
			c.add(path, "", "%q is already a variable of this resource; use a different name", it.name)
		default:
			valid = append(valid, it)
		}
	}
	r.forEach = valid
}

// checkIdentities checks that the name or namespace of each object depends on all variables of its collection.
// Otherwise, two combinations would render the same object.
func checkIdentities(resources []*resource, all []*found, c *collector) {
	if len(c.problems) > 0 {
		return
	}
	for _, r := range resources {
		var read []string
		name, namespace := r.Path+".metadata.name", r.Path+".metadata.namespace"
		for _, f := range all {
			if r.Collection && (f.path == name || f.path == namespace) {
				read = append(read, f.compiled.References()...)
			}
		}
		for _, it := range r.forEach {
			if !slices.Contains(read, it.name) {
				c.add(name, "", "must read %s, so that each object of the collection has a unique name",
					it.name)
			}
		}
	}
}

// iterator returns the variable with the given name, or nil if the collection has no such variable. The receiver can be
// nil.
func (r *resource) iterator(name string) *iterator {
	if r == nil {
		return nil
	}
	if i := slices.IndexFunc(r.forEach, func(it iterator) bool { return it.name == name }); i >= 0 {
		return &r.forEach[i]
	}
	return nil
}

func (r *resource) forEachPath() string { return fmt.Sprintf("spec.resources[%d].forEach", r.index) }

// readyVariable returns the name by which readyWhen refers to the object of the resource.
func (r *resource) readyVariable() string {
	if r.Collection {
		return each
	}
	return r.ID
}

// checkList checks that a forEach expression yields a list.
func (f *found) checkList(c *collector) {
	switch t := f.compiled.Type(); {
	case f.compiled.IsList():
	case strings.HasPrefix(t, "map("):
		c.add(f.path, f.text, "must be a list, not %s; iterate over its keys with .map(key, key).sort()", t)
	case strings.HasPrefix(t, "optional_type("):
		c.add(f.path, f.text, "must be a list, not %s; add .orValue([])", t)
	default:
		c.add(f.path, f.text, "must be a list, not %s", describeType(t))
	}
}

// scopes holds the CEL environments for the expressions of a Blueprint.
type scopes struct {
	env                *expression.Env
	templates, readies map[*resource]*expression.Env // the environments of collections
}

func newScopes(env *expression.Env) scopes {
	return scopes{env, map[*resource]*expression.Env{}, map[*resource]*expression.Env{}}
}

// of returns the environment of an expression. The forEach expressions of its owner must already be compiled. owner is
// nil for expressions of spec.type.
func (s scopes) of(f *found, owner *resource) (env *expression.Env, err error) {
	if owner == nil || !owner.Collection || f.use == iterates || f.use == includes {
		return s.env, nil
	}
	f.compiled.collection = owner
	known := s.templates
	if f.use == readies {
		known = s.readies
	}
	if known[owner] != nil {
		return known[owner], nil
	}
	lists := map[string]*expression.Program{}
	if f.use == readies {
		lists[each], _ = s.env.Compile(owner.ID) // an undeclared id is reported elsewhere
	} else {
		for _, it := range owner.forEach {
			lists[it.name] = it.list.Program
		}
	}
	known[owner], err = s.env.WithItems(lists)
	return known[owner], err
}

// canChange reports whether the value of a variable depends on other resources. Such a value can change without a
// change to the instance.
func (e *expressionAt) canChange(variable string) bool {
	if it := e.collection.iterator(variable); it != nil {
		return slices.ContainsFunc(it.list.References(), it.list.canChange)
	}
	return variable != "self"
}

// combinations holds the lists of a collection. Each combination of their items defines one object.
type combinations struct {
	iterators []iterator
	lists     [][]any
	count     int
	memory    int64 // reserved for the lists
}

// set sets the variables to the items for the nth object.
func (c *combinations) set(n int, variables map[string]any) {
	for i, at := range c.indexes(n) {
		variables[c.iterators[i].name] = c.lists[i][at]
	}
}

// describe returns the items for the nth object, such as "region[0], tier[2]".
func (c *combinations) describe(n int) string {
	var parts []string
	for i, at := range c.indexes(n) {
		parts = append(parts, fmt.Sprintf("%s[%d]", c.iterators[i].name, at))
	}
	return strings.Join(parts, ", ")
}

// indexes returns the index, in each list, of the item for the nth object.
func (c *combinations) indexes(n int) []int {
	out := make([]int, len(c.lists))
	for i := len(c.lists) - 1; i >= 0; i-- {
		out[i], n = n%len(c.lists[i]), n/len(c.lists[i])
	}
	return out
}

// combine evaluates the lists of a collection and checks the number of combinations. If it fails, it returns the reason
// why the collection must wait, or a problem.
func (s *stepping) combine(ctx context.Context, r *resource) (*combinations, string, *Problem) {
	c := &combinations{iterators: r.forEach, count: 1}
	var sizes []string
	empty, tooMany := false, false
	for _, it := range r.forEach {
		value, err := s.run(ctx, it.list, s.ready)
		var items []any
		size := 0
		if err == nil {
			items, size, err = value.Items(MaxCollection)
		}
		if err == nil && items != nil && !tooMany {
			err = s.keep(c, value)
		}
		if err != nil {
			reason, problem := explainFailure(r, it.list.failed(err))
			s.release(c)
			return nil, reason, problem
		}
		c.lists, sizes = append(c.lists, items), append(sizes, strconv.Itoa(size))
		empty, tooMany = empty || size == 0, tooMany || size > MaxCollection
		if !tooMany {
			c.count *= size
			tooMany = c.count > MaxCollection
		}
		if tooMany { // only the sizes are needed
			c.lists = nil
			s.release(c)
		}
	}
	switch {
	case empty:
		c.count = 0
	case tooMany:
		return nil, "", &Problem{Path: r.forEachPath(), Reason: fmt.Sprintf(
			"%s items result in more than %d objects", strings.Join(sizes, " x "), MaxCollection)}
	}
	return c, "", nil
}

// keep reserves the memory for a list of a collection.
func (s *stepping) keep(c *combinations, list expression.Value) error {
	size := list.Memory()
	if size > MaxListMemory {
		return fmt.Errorf("needs about %d MiB of memory; the maximum is %d MiB", size>>20, MaxListMemory>>20)
	}
	c.memory += size
	return s.memory.Grow(size)
}

// release releases the memory of the lists. They must not be used afterwards.
func (s *stepping) release(c *combinations) {
	s.memory.Shrink(c.memory)
	c.memory = 0
}

// stepCollection renders the objects of a collection. All resources that the collection refers to must be ready.
func (s *stepping) stepCollection(ctx context.Context, r *resource) {
	objects, reason, problem := s.renderCollection(ctx, r)
	switch {
	case problem != nil:
		s.problem(r, *problem)
		return
	case reason != "":
		s.wait(r, reason)
		return
	}
	s.out.Rendered = append(s.out.Rendered, objects...)
	s.out.Collections[r.ID] = len(objects)
	values := make([]any, 0, len(objects))
	var unready []string
	count := 0
	for _, o := range objects {
		if observed := s.observed[o.Key]; observed != nil {
			values = append(values, observed.Object)
		}
		reason := s.unready(ctx, r, o.Key)
		if reason == "" {
			continue
		}
		if count++; count <= maxUnreadyItems {
			name := strings.TrimPrefix(o.Object.GetNamespace()+"/"+o.Object.GetName(), "/")
			unready = append(unready, Cut(name, maxQuoted)+": "+reason)
		}
	}
	if count > 0 {
		reason := fmt.Sprintf("%d of %d are not ready: %s", count, len(objects), strings.Join(unready, "; "))
		if more := count - len(unready); more > 0 {
			reason += fmt.Sprintf("; and %d more", more)
		}
		s.out.Unready = append(s.out.Unready, Reason{r.ID, reason})
		if len(values) < len(objects) || !r.isReadableUnready() {
			s.blocked[r] = r.ID
			return
		}
	}
	s.state[r] = ready
	s.ready[r.ID] = values
}

// renderCollection returns all objects of a collection, or the reason why the collection must wait, or a problem.
func (s *stepping) renderCollection(ctx context.Context, r *resource) ([]Rendered, string, *Problem) {
	all, reason, problem := s.combine(ctx, r)
	if all == nil {
		return nil, reason, problem
	}
	defer s.release(all)
	if s.collected += all.count; s.collected > MaxCollected {
		return nil, "", &Problem{Path: r.forEachPath(), Reason: fmt.Sprintf(
			"the collections have more than %d objects in total", MaxCollected)}
	}
	objects := make([]Rendered, 0, all.count)
	variables := maps.Clone(s.ready)
	for n := range all.count {
		all.set(n, variables)
		item := all.describe(n)
		object, reason, problem := s.render(ctx, r, variables, item)
		switch {
		case problem != nil:
			problem.Reason = fmt.Sprintf("with %s: %s", item, problem.Reason)
			return nil, "", problem
		case reason != "":
			return nil, reason, nil
		}
		key := ItemKey(r.ID, object.GetNamespace(), object.GetName())
		objects = append(objects, r.rendered(key, object))
	}
	return objects, "", nil
}

// ItemKey returns the key of an object in a collection. See [Rendered].
func ItemKey(id, namespace, name string) string { return id + "/" + namespace + "/" + name }
