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

// More people can read messages than Secrets. A resource is sensitive if its objects can contain data of a Secret,
// because it is a Secret or because its template reads data of a sensitive resource. An expression is sensitive if it
// reads such data. Errors of sensitive resources and expressions are reported without values.

// markSensitive finds the sensitive resources and expressions. The resources are in order, each after those that it
// refers to, and all expressions are compiled.
//
// A name or namespace must not be derived from a Secret's data, because names are in URLs, logs and the messages about
// objects of all kinds.
func markSensitive(resources []*resource, all []*found, c *collector) {
	byID := map[string]*resource{}
	for _, r := range resources {
		byID[r.ID] = r
		r.sensitive = r.GVK.GroupKind() == schema.GroupKind{Kind: "Secret"}
		for _, f := range all {
			if f.owner != r.index || f.use == includes || f.use == readies || !f.compiled.readsSensitive(byID) {
				continue
			}
			f.compiled.sensitive, r.sensitive = true, true
			if f.path == r.Path+".metadata.name" || f.path == r.Path+".metadata.namespace" {
				c.add(f.path, f.text, "must not be derived from a Secret's data, because the names of objects are not secret")
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

// isIdentity reports whether the path leads to a field that identifies an object, as opposed to its content.
func isIdentity(p expression.Path) bool {
	at := func(i int, names ...string) bool {
		name, is := "", false
		if i < len(p) {
			name, is = p[i].(string)
		}
		return is && slices.Contains(names, name)
	}
	return at(0, "apiVersion", "kind") ||
		at(0, "metadata") && at(1, "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")
}

// IsSensitive reports whether the objects of a resource can contain data of a Secret.
func (c *Compiled) IsSensitive(id string) bool {
	return slices.ContainsFunc(c.resources, func(r *resource) bool { return r.ID == id && r.sensitive })
}

const withheld = "the reason is hidden, because the expression reads a Secret"

// explain returns why the expression failed. If the expression is sensitive, the text contains no values.
func (e *expressionAt) explain(err error) string {
	var missing *expression.MissingError
	switch {
	case !e.sensitive, errors.Is(err, errInstanceCost), errors.Is(err, expression.ErrCost):
		return explained(err)
	case errors.As(err, &missing) && missing.Path != nil: // the path is in the expression itself
		return explained(err)
	}
	return withheld
}

// explainMissing describes the missing value that the expression reads.
func (e *expressionAt) explainMissing(missing *expression.MissingError) string {
	if e.sensitive && missing.Path == nil {
		return "a key or an index of a Secret"
	}
	if missing.Path != nil {
		return missing.Path.String()
	}
	return "a value (" + missing.Error() + ")"
}

// KnownField returns the longest prefix of a field path, in the notation of the API server, that does not depend on
// data of instances. The prefix ends before the keys in the result of an expression, because they can contain data.
func (c *Compiled) KnownField(id, field string) string {
	i := slices.IndexFunc(c.resources, func(r *resource) bool { return r.ID == id })
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

// fieldSegment matches the first step of a field path: a name, or a key or an index in brackets.
var fieldSegment = regexp.MustCompile(`^(?:\.?[^.\[\]]+|\[[^\]]*\])`)

// within returns the node of a field or item. It returns nil if the template has no such field, such as one that the
// API server requires, and false if the node is an expression.
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
