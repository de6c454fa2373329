package blueprint

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// Messages are read by more people than Secrets are. A resource is sensitive if its objects can contain data of a Secret:
// if it is a Secret, or if its template reads data of a sensitive resource. An expression is sensitive if it reads such
// data. What goes wrong with either is reported without values.

// markSensitive finds the sensitive resources and expressions. The resources are in order, each after those that it
// refers to, and all expressions are compiled.
//
// A name or namespace must not be made of a Secret's data, because names are in URLs, logs and the messages about objects
// of all kinds.
func markSensitive(resources []*resource, all []*found, c *collector) {
	byID := map[string]*resource{}
	for _, r := range resources {
		byID[r.id] = r
		r.sensitive = r.gvk.GroupKind() == schema.GroupKind{Kind: secretKind}
		for _, f := range all {
			if f.owner != r.index || f.use == includes || f.use == readies || !f.compiled.readsSensitive(byID) {
				continue
			}
			f.compiled.sensitive, r.sensitive = true, true
			if f.path == r.path+".metadata.name" || f.path == r.path+".metadata.namespace" {
				c.add(f.path, f.text, "must not be made of a Secret's data, because the names of objects are not secret")
			}
		}
		for _, f := range all {
			if f.owner == r.index && f.use == readies {
				f.compiled.sensitive = f.compiled.readsSensitive(byID)
			}
		}
	}
}

func (e *expressionAt) readsSensitive(byID map[string]*resource) bool {
	return slices.ContainsFunc(e.Paths(), func(p expression.Path) bool {
		r := byID[p[0].(string)]
		return r != nil && r.sensitive && !isIdentity(p[1:])
	})
}

// isIdentity reports whether what is read of an object identifies it, and is not its content.
func isIdentity(p expression.Path) bool {
	at := func(i int, names ...string) bool {
		name, is := "", false
		if i < len(p) {
			name, is = p[i].(string)
		}
		return is && slices.Contains(names, name)
	}
	return at(0, "apiVersion", "kind") || at(0, "metadata") && at(1, "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")
}

// IsSensitive reports whether the objects of a resource can contain data of a Secret.
func (c *Compiled) IsSensitive(id string) bool {
	return slices.ContainsFunc(c.resources, func(r *resource) bool { return r.id == id && r.sensitive })
}

const withheld = "the reason is not shown, because the expression reads a Secret"

// explain returns why the expression failed. If it is sensitive, that is without values.
func (e *expressionAt) explain(err error) string {
	var missing *expression.MissingError
	switch {
	case !e.sensitive, errors.Is(err, errInstanceCost), errors.Is(err, expression.ErrCost):
		return explained(err)
	case errors.As(err, &missing) && missing.Path != nil: // by the expression's own words
		return explained(err)
	}
	return withheld
}

// explainMissing returns what the expression reads and is missing.
func (e *expressionAt) explainMissing(missing *expression.MissingError) string {
	if e.sensitive && missing.Path == nil {
		return "a key or an index of a Secret is not there"
	}
	return missing.Error()
}

// KnownField returns as much of the path of a field, as the API server writes it, as does not depend on data of
// instances: a path into what an expression makes ends before the keys in it, which can be values.
func (c *Compiled) KnownField(id, field string) string {
	i := slices.IndexFunc(c.resources, func(r *resource) bool { return r.id == id })
	if i < 0 {
		return ""
	}
	n, rest := c.resources[i].body, field
	for rest != "" && n != nil {
		segment := fieldSegment.FindString(rest)
		if segment == "" {
			break
		}
		next, open := within(n, strings.Trim(segment, ".[]"))
		if !open {
			break
		}
		n, rest = next, rest[len(segment):]
	}
	return strings.TrimPrefix(field[:len(field)-len(rest)], ".")
}

// fieldSegment is the first step of a field's path: a name, or a key or an index in brackets.
var fieldSegment = regexp.MustCompile(`^(?:\.?[^.\[\]]+|\[[^\]]*\])`)

// within returns what a node makes of one of its fields or items. It returns nil if the template has no such field, as of
// one that the API server requires, and false for what an expression makes.
func within(n node, name string) (next node, open bool) {
	switch n := n.(type) {
	case whole, text:
		return nil, false
	case list:
		return item(n, name)
	case literal:
		if _, is := n.value.([]any); is {
			return item(n, name)
		}
	}
	keys, value := fieldsOf(n)
	if i := slices.Index(keys, name); i >= 0 {
		return value(i), true
	}
	return nil, true
}

func item(n node, index string) (node, bool) {
	count, at := itemsOf(n)
	if i, err := strconv.Atoi(index); err == nil && i >= 0 && i < count {
		return at(i), true
	}
	return nil, false
}
