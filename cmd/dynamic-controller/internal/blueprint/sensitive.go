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

// More people can read messages than Secrets. A resource is sensitive if its objects can contain data from a Secret,
// because its kind is Secret or because its template reads data from a sensitive resource. An expression is sensitive
// if it reads data from a sensitive resource. Messages about sensitive resources and expressions do not contain values.

var secretKind = schema.GroupKind{Kind: "Secret"}

// markSensitive marks the sensitive resources and expressions. The resources must be sorted so that each one follows
// those that it refers to. All expressions must be compiled.
//
// Names, namespaces and selectors must not be derived from a Secret's data because they appear in URLs, logs and
// messages. The same applies to the status of an instance.
func markSensitive(resources []*resource, all []*found, c *collector) {
	byID := map[string]*resource{}
	for _, r := range resources {
		byID[r.ID] = r
		r.sensitive = r.GVK.GroupKind() == secretKind
		for _, f := range all {
			if f.owner != r.index || f.use == includes || f.use == readies || !f.compiled.readsSensitive(byID) {
				continue
			}
			f.compiled.sensitive = true
			if f.use == iterates {
				continue
			}
			r.sensitive = true
			if f.path == r.Path+".metadata.name" || f.path == r.Path+".metadata.namespace" || r.Reference {
				c.add(f.path, f.text, "must not be derived from a Secret's data, because the names of objects are not secret")
			}
		}
		for _, f := range all {
			if f.owner == r.index && (f.use == includes || f.use == readies) {
				f.compiled.sensitive = f.compiled.readsSensitive(byID)
			}
		}
	}
	for _, f := range all {
		if f.owner == ofType && f.compiled.readsSensitive(byID) {
			c.add(f.path, f.text, "must not read a Secret's data, or objects that contain it, because more people can read the "+
				"status than the Secret; only fields such as metadata.name can be read")
		}
	}
}

// readsSensitive reports whether an expression reads sensitive data.
func (e *expressionAt) readsSensitive(byID map[string]*resource) bool {
	return slices.ContainsFunc(e.Paths(), func(p expression.Path) bool {
		name, rest := p[0].(string), p[1:]
		source := byID[name]
		switch it := e.collection.iterator(name); {
		case it != nil && !it.list.sensitive:
			return false
		case it != nil:
			// If the list is not the id of a resource, its items can be arbitrary values. A field such as metadata.name can then
			// contain sensitive data, too.
			if source = byID[it.list.String()]; source == nil {
				return true
			}
		case e.collection != nil && name == each:
			source = e.collection
		case source != nil && (source.Collection || source.isList) && len(rest) > 0:
			if _, isIndex := rest[0].(int64); isIndex {
				rest = rest[1:]
			}
		}
		return source != nil && source.sensitive && !isIdentity(rest)
	})
}

// isIdentity reports whether the path leads to a field that identifies an object rather than to its content.
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

// IsSensitive reports whether the objects of a resource can contain data from a Secret.
func (c *Compiled) IsSensitive(id string) bool {
	return slices.ContainsFunc(c.resources, func(r *resource) bool { return r.ID == id && r.sensitive })
}

const withheld = "the reason is hidden, because the expression reads a Secret"

// explain returns why the expression failed. For a sensitive expression, the text contains no values.
func (e *expressionAt) explain(err error) string {
	var missing *expression.MissingError
	switch {
	case !e.sensitive, errors.Is(err, errInstanceCost), errors.Is(err, expression.ErrCost):
		return e.explained(err)
	case errors.As(err, &missing) && missing.Path != nil: // the path is part of the expression
		return e.explained(err)
	}
	return withheld
}

// explainMissing describes a missing value that the expression reads. For a sensitive expression, the text contains no
// values.
func (e *expressionAt) explainMissing(missing *expression.MissingError) string {
	if e.sensitive && missing.Path == nil {
		return "a key or an index of a Secret"
	}
	if missing.Path != nil {
		return missing.Path.String()
	}
	return "a value (" + missing.Error() + ")"
}

// KnownField returns the longest prefix of a field path that contains no instance data. id is the id of the
// resource. The path uses the notation of the API server's errors, such as spec.containers[0].image. The prefix ends
// before a key that is part of the result of an expression because such a key can be data.
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

// within returns the node of a field or an item. It returns nil if the template does not set the field, for example a
// missing required field. It returns false if the index is unknown or if the field is inside the result of an
// expression.
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
	next, _ = field(n, name)
	return next, true
}

func item(n node, index string) (node, bool) {
	count, at := itemsOf(n)
	if i, err := strconv.Atoi(index); err == nil && i >= 0 && i < count {
		return at(i), true
	}
	return nil, false
}
