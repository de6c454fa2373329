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

// checking checks a template against the schema of its kind. It reports only problems for which the API server rejects
// an object before admission: unknown fields, values of the wrong type, and values that an enum does not allow. It does
// not report missing required fields because admission can add them. It accepts null, except as an item of a list whose
// x-kubernetes-list-type is map or set. For expressions, it checks only the type.
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
		case "apiVersion", "kind", "status": // checked by checkObject
		case "metadata":
			if m := root.field(key); m != nil {
				c.checkMetadata(value(i), m, at)
			}
		default:
			c.checkField(value(i), key, root, at, s.IsXPreserveUnknownFields())
		}
	}
}

// checkMetadata checks the field names of metadata. checkObject checks the values.
func (c *checking) checkMetadata(n node, s *fieldSchema, path string) {
	keys, value := fieldsOf(n)
	for i, key := range keys {
		if !slices.Contains(forbiddenMetadata, key) && s.field(key) == nil {
			c.checkField(value(i), key, s, child(path, key), false)
		}
	}
}

// checkField checks a field of an object. open is true if the object, or an object that contains it, preserves unknown
// fields.
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
		of = fmt.Sprintf(" in %s %s", c.kind.GroupVersion(), c.kind.Kind)
	}
	c.problems.add(path, "", "unknown field%s%s", of, s.suggest(key))
}

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
			c.problems.add(path, e.String(), "must be %s, not %s%s", s.typeName(), describeType(e.Type()), hint)
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

// checkItemKeys checks an item of a list. If the x-kubernetes-list-type of the list is map or set, the item must not be
// null. If it is map, the item must also have at least one of the keys.
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

// checkString checks a string without expressions. It accepts the empty string because the built-in kinds of Kubernetes
// treat it as absent.
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
				hint = "; use stringData for plain text"
			}
			c.problems.add(path, "", "must be base64-encoded%s", hint)
		}
		return
	}
	if values := s.Enum(); len(values) > 0 && !slices.Contains(values, l.value) {
		var names []string
		for _, v := range values[:min(len(values), maxValues)] {
			names = append(names, fmt.Sprintf("%q", v))
		}
		if len(values) > len(names) {
			names = append(names, "...")
		}
		c.problems.add(path, "", "must be one of %s", strings.Join(names, ", "))
	}
}

// typeHint returns a hint to append to a type error, or "" if there is none. made is the type of the value and wanted
// is the type in the schema.
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

// describeType describes the type of an expression. Parameterized types keep CEL's notation.
func describeType(t string) string {
	switch t {
	case "string":
		return "a string"
	case "int", "uint":
		return "an integer"
	case "double":
		return "a number"
	case "bool":
		return "a boolean"
	}
	return t
}

// typeOf returns the JSON type of a node's value, or "" if the type is unknown or null.
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

// fieldsOf returns the sorted keys of an object, and a function that returns the value of the i-th key.
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

// itemsOf returns the number of items of a list, and a function that returns the i-th item.
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
