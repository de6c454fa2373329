package blueprint

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/common"
)

// checking checks a template against the schema of its kind. It reports only errors that cause the API server to reject
// an object before admission: unknown fields, values of the wrong type and values that are not in an enum. Missing
// required fields are not reported, because admission can add them. Null is accepted everywhere. Only the type of an
// expression is known.
type checking struct {
	kind     schema.GroupVersionKind
	problems *collector
}

// checkFields checks a compiled template.
func (r *resource) checkFields(s common.Schema, problems *collector) {
	if s == nil || s.Type() != "object" {
		return
	}
	c, root := &checking{kind: r.GVK, problems: problems}, &fieldSchema{Schema: s}
	keys, value := fieldsOf(r.body)
	for i, key := range keys {
		switch at := child(r.Path, key); key {
		case "apiVersion", "kind", "status": // see checkObject
		case "metadata":
			if m := root.field(key); m != nil {
				c.checkMetadata(value(i), m, at)
			}
		default:
			c.checkField(value(i), key, root, at, s.IsXPreserveUnknownFields())
		}
	}
}

// checkMetadata checks the names of fields. checkObject checks their values.
func (c *checking) checkMetadata(n node, s *fieldSchema, path string) {
	keys, value := fieldsOf(n)
	for i, key := range keys {
		if !slices.Contains(forbiddenMetadata, key) && s.field(key) == nil {
			c.checkField(value(i), key, s, child(path, key), false)
		}
	}
}

// checkField checks a field of an object. The argument open is true if the object, or an object that contains it,
// preserves unknown fields.
func (c *checking) checkField(n node, key string, s *fieldSchema, path string, open bool) {
	if field := s.field(key); field != nil {
		c.check(n, field, path, open)
		return
	}
	if s.isMap() {
		c.check(n, s.value(), path, open)
		return
	}
	if open || len(s.fields) == 0 || c.problems.full() {
		return
	}
	of := ""
	if c.kind.Kind != "" {
		of = fmt.Sprintf(" in %s of %s", c.kind.Kind, c.kind.GroupVersion())
	}
	c.problems.add(path, "", "unknown field%s%s", of, s.suggest(key))
}

// check checks a value.
func (c *checking) check(n node, s *fieldSchema, path string, open bool) {
	wanted := s.types()
	if wanted == nil || c.problems.full() {
		return
	}
	if e, is := n.(whole); is {
		if e.Program != nil && !e.Fits(s) {
			hint := ""
			if wanted[0] == "string" && e.IsPrimitive() {
				hint = "; convert it with string()"
			}
			c.problems.add(path, e.String(), "must be %s, not %s%s", s.typeName(), e.Type(), hint)
		}
		return
	}
	made := typeOf(n)
	if made != "" && !slices.Contains(wanted, made) {
		c.problems.add(path, "", "must be %s%s", s.typeName(), typeHint(n, made, wanted[0]))
		return
	}
	open = open || s.IsXPreserveUnknownFields() || s.IsXEmbeddedResource()
	switch made {
	case "object":
		keys, value := fieldsOf(n)
		for i, key := range keys {
			c.checkField(value(i), key, s, child(path, key), open)
		}
	case "array":
		count, item := itemsOf(n)
		for i := range count {
			at := fmt.Sprintf("%s[%d]", path, i)
			c.checkItemKeys(item(i), s, at)
			c.check(item(i), s.item(), at, open)
		}
	case "string":
		c.checkString(n, s, path)
	}
}

// checkItemKeys checks that an item of a list can be identified, if the list is a map or a set.
func (c *checking) checkItemKeys(item node, s *fieldSchema, path string) {
	if l, is := item.(literal); is && l.value == nil && (s.XListType() == "map" || s.XListType() == "set") {
		c.problems.add(path, "", "must not be null")
		return
	}
	keys := s.XListMapKeys()
	if len(keys) == 0 || typeOf(item) != "object" {
		return
	}
	fields, _ := fieldsOf(item)
	if !slices.ContainsFunc(keys, func(key string) bool {
		field := s.item().field(key)
		return slices.Contains(fields, key) || field != nil && field.Default() != nil
	}) {
		c.problems.add(path, "", "must have %s, which identifies the item", strings.Join(keys, " or "))
	}
}

// checkString checks a string without expressions. Kubernetes' built-in kinds treat an empty string as absent.
func (c *checking) checkString(n node, s *fieldSchema, path string) {
	l, is := n.(literal)
	if !is || l.value == "" {
		return
	}
	text := l.value.(string)
	if s.Format() == "byte" {
		if _, err := base64.StdEncoding.DecodeString(text); err != nil {
			hint := ""
			if c.kind.Kind == "Secret" && c.kind.Group == "" {
				hint = "; put text into stringData"
			}
			c.problems.add(path, "", "must be base64%s", hint)
		}
		return
	}
	if values := s.Enum(); len(values) > 0 && !slices.Contains(values, l.value) {
		var names []string
		for _, v := range values[:min(len(values), maxValuesTold)] {
			names = append(names, fmt.Sprintf("%q", v))
		}
		if len(values) > len(names) {
			names = append(names, "...")
		}
		c.problems.add(path, "", "must be one of %s", strings.Join(names, ", "))
	}
}

// typeHint explains why a value does not have the type that its author may expect.
func typeHint(n node, made, wanted string) string {
	_, mixed := n.(text)
	switch {
	case mixed:
		return ", but an expression with text around it is a string"
	case wanted == "string" && (made == "number" || made == "boolean"):
		return "; put it in quotes"
	case made == "string" && (wanted == "number" || wanted == "boolean"):
		return ", not a string"
	}
	return ""
}

// typeOf returns the JSON type that a node yields, or "" if that is unknown or null.
func typeOf(n node) string {
	switch n := n.(type) {
	case object:
		return "object"
	case list:
		return "array"
	case text:
		return "string"
	case literal:
		switch n.value.(type) {
		case map[string]any:
			return "object"
		case []any:
			return "array"
		case string:
			return "string"
		case bool:
			return "boolean"
		case int64, float64:
			return "number"
		}
	}
	return ""
}

// fieldsOf returns the fields of an object.
func fieldsOf(n node) (keys []string, value func(i int) node) {
	switch n := n.(type) {
	case object:
		return n.keys, func(i int) node { return n.values[i] }
	case literal:
		m, _ := n.value.(map[string]any)
		keys = slices.Sorted(maps.Keys(m))
		return keys, func(i int) node { return literal{value: m[keys[i]]} }
	}
	return nil, nil
}

// itemsOf returns the items of a list.
func itemsOf(n node) (count int, item func(i int) node) {
	switch n := n.(type) {
	case list:
		return len(n), func(i int) node { return n[i] }
	case literal:
		l, _ := n.value.([]any)
		return len(l), func(i int) node { return literal{value: l[i]} }
	}
	return 0, nil
}
