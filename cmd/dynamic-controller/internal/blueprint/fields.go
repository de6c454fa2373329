package blueprint

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// checking holds a template against the schema of its kind. It says what no server would take that objects are applied to,
// and nothing else: a field that there is not, and a value that is of another type or none of those that are listed. What
// is missing may be what admission adds; null is for any field; and of an expression only its type is known.
type checking struct {
	kind     schema.GroupVersionKind
	problems *collector
}

// checkFields checks a compiled template. Without a schema there is nothing to check.
func (r *resource) checkFields(s common.Schema, problems *collector) {
	if s == nil || s.Type() != "object" {
		return
	}
	c, root := &checking{kind: r.gvk, problems: problems}, &seen{Schema: s}
	keys, value := fieldsOf(r.body)
	for i, key := range keys {
		switch path := child(r.path, key); key {
		case "apiVersion", "kind", "status": // checkObject has checked them
		case "metadata":
			if m := root.field(key); m != nil {
				c.checkMetadata(value(i), m, path)
			}
		default:
			c.checkField(value(i), key, root, path, s.IsXPreserveUnknownFields())
		}
	}
}

// checkMetadata checks the names of the fields, which checkObject does not.
func (c *checking) checkMetadata(n node, s *seen, path string) {
	keys, value := fieldsOf(n)
	for i, key := range keys {
		if !slices.Contains(servers, key) && s.field(key) == nil {
			c.checkField(value(i), key, s, child(path, key), false)
		}
	}
}

// checkField checks one of an object. Where open, unknown fields are kept somewhere above, and then the server takes them
// everywhere below, though it may drop them.
func (c *checking) checkField(n node, key string, s *seen, path string, open bool) {
	if field := s.field(key); field != nil {
		c.check(n, field, path, open)
		return
	}
	if a := s.AdditionalProperties(); a != nil && (a.Allows() || a.Schema() != nil) {
		c.check(n, s.value(), path, open)
		return
	}
	if open || len(s.fields) == 0 {
		return
	}
	reason := fmt.Sprintf("a %s of %s has no such field", c.kind.Kind, c.kind.GroupVersion())
	// What is not told is not looked for.
	if len(c.problems.problems) < maxProblemsTold {
		if near := nearest(key, slices.Sorted(maps.Keys(s.fields))); near != "" {
			reason += fmt.Sprintf(": did you mean %s?", near)
		}
	}
	c.problems.add(path, "", "%s", reason)
}

// check checks what is made somewhere against the schema of what may be there.
func (c *checking) check(n node, s *seen, path string, open bool) {
	wanted := expression.TypesOf(s)
	if wanted == nil || c.problems.full() {
		return
	}
	if e, is := n.(whole); is {
		if e.Program != nil && !e.Fits(s) {
			reason := fmt.Sprintf("is of type %s, and has to be %s", e.Type(), typeOf(s))
			if wanted[0] == "string" && e.IsPrimitive() {
				reason += ": make it one with string()"
			}
			c.problems.add(path, e.String(), "%s", reason)
		}
		return
	}
	made := typeMade(n)
	if made != "" && !slices.Contains(wanted, made) {
		c.problems.add(path, "", "%s", unlike(n, made, wanted[0], s))
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
			c.checkKeys(item(i), s, at)
			c.check(item(i), s.item(), at, open)
		}
	case "string":
		c.checkString(n, s, path)
	}
}

// checkKeys checks that one of a list, if its items are known by keys, has any of them.
func (c *checking) checkKeys(item node, s *seen, path string) {
	if l, is := item.(literal); is && l.value == nil && (s.XListType() == "map" || s.XListType() == "set") {
		c.problems.add(path, "", "is null, and there is no telling it from the others of the list")
		return
	}
	keys := s.XListMapKeys()
	if len(keys) == 0 || typeMade(item) != "object" {
		return
	}
	fields, _ := fieldsOf(item)
	if !slices.ContainsFunc(keys, func(key string) bool {
		field := s.item().field(key)
		return slices.Contains(fields, key) || field != nil && field.Default() != nil
	}) {
		c.problems.add(path, "", "needs %s, by which it is told from the others of the list", strings.Join(keys, " and "))
	}
}

// seen is a schema whose parts are worked out once, however often a template comes by.
type seen struct {
	common.Schema
	fields        map[string]*seen
	items, values *seen
}

func seeing(s common.Schema) *seen {
	if s == nil {
		s = &openapi.Schema{Schema: &spec.Schema{}} // the field is there, and that is all
	}
	return &seen{Schema: s}
}

// field is nil if there is no such field.
func (s *seen) field(name string) *seen {
	if s.fields == nil {
		s.fields = map[string]*seen{}
		for name, field := range s.Properties() {
			s.fields[name] = seeing(field)
		}
	}
	return s.fields[name]
}

func (s *seen) item() *seen {
	if s.items == nil {
		s.items = seeing(s.Items())
	}
	return s.items
}

// value is that of a map.
func (s *seen) value() *seen {
	if s.values == nil {
		s.values = seeing(s.AdditionalProperties().Schema())
	}
	return s.values
}

// checkString checks one that has no expressions. An empty one is to Kubernetes' own kinds what is not there.
func (c *checking) checkString(n node, s common.Schema, path string) {
	l, is := n.(literal)
	if !is || l.value == "" {
		return
	}
	text := l.value.(string)
	if s.Format() == "byte" {
		if _, err := base64.StdEncoding.DecodeString(text); err != nil {
			reason := "is no base64"
			if c.kind.Kind == "Secret" && c.kind.Group == "" {
				reason += ": text belongs into stringData"
			}
			c.problems.add(path, "", "%s", reason)
		}
		return
	}
	if values := s.Enum(); len(values) > 0 && !slices.Contains(values, l.value) {
		var names []string
		for _, v := range values[:min(len(values), maxValuesTold)] {
			names = append(names, fmt.Sprintf("%q", v))
		}
		reason := "has to be one of " + strings.Join(names, ", ")
		if len(values) > len(names) {
			reason += ", ..."
		}
		c.problems.add(path, "", "%s", reason)
	}
}

// unlike says that something is of another type than it has to be.
func unlike(n node, made, wanted string, s common.Schema) string {
	reason := "has to be " + typeOf(s)
	_, mixed := n.(text)
	switch {
	case mixed:
		return reason + ", and an expression with text around it makes a string"
	case wanted == "string" && (made == "number" || made == "boolean"):
		return reason + ": put it in quotes"
	case made == "string" && (wanted == "number" || wanted == "boolean"):
		return reason + ", not a string"
	}
	return reason
}

// typeOf names the type that a value has to be of.
func typeOf(s common.Schema) string {
	switch t := s.Type(); {
	case len(expression.TypesOf(s)) > 1:
		return "a number or a string"
	case s.IsXEmbeddedResource():
		return "an object"
	case t == "object" && len(s.Properties()) == 0:
		if a := s.AdditionalProperties(); a != nil {
			return "a map" + of(a.Schema())
		}
		return "a map"
	case t == "object" || t == "integer":
		return "an " + t
	case t == "array":
		return "a list" + of(s.Items())
	default:
		return "a " + t
	}
}

// of says what there is in a list or map.
func of(s common.Schema) string {
	if s == nil {
		return ""
	}
	switch t := s.Type(); t {
	case "":
		return ""
	case "array":
		return " of lists"
	default:
		return " of " + t + "s"
	}
}

// typeMade is the type in JSON of what a node makes, empty if that is any or not known.
func typeMade(n node) string {
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

// fieldsOf takes an object apart, whether or not it has expressions in it.
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

// itemsOf takes a list apart.
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
