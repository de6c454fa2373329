package blueprint

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// keywords are what a schema may have.
var keywords = sync.OnceValue(func() (all []string) {
	for f := range reflect.TypeFor[apiextensionsv1.JSONSchemaProps]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		all = append(all, name)
	}
	slices.Sort(all)
	return all
})

// checkKeywords says where in a schema there is what a decoder says only that it is somewhere. A decoder of Go's would also
// take a keyword in any case.
func checkKeywords(schema any, path string, c *collector) {
	fields, is := schema.(map[string]any)
	if !is {
		c.add(path, "", "has to be a schema, as {type: string}")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value, at := fields[name], child(path, name)
		if value == nil && slices.Contains(keywords(), name) {
			continue // as if it were not there
		}
		switch name {
		case "properties":
			of, is := value.(map[string]any)
			if !is {
				c.add(at, "", "has to be an object, of a schema for each field")
			}
			for _, field := range slices.Sorted(maps.Keys(of)) {
				checkKeywords(of[field], child(at, field), c)
			}
		case "items", "not":
			checkKeywords(value, at, c)
		case "additionalProperties":
			if _, isBool := value.(bool); !isBool {
				checkKeywords(value, at, c)
			}
		case "allOf", "anyOf", "oneOf":
			of, is := value.([]any)
			if !is {
				c.add(at, "", "has to be a list of schemas")
			}
			for i, schema := range of {
				checkKeywords(schema, fmt.Sprintf("%s[%d]", at, i), c)
			}
		case "required":
			if _, is := value.([]any); !is {
				c.add(at, "", "has to be a list of names, beside the properties that are required")
			}
		case "openAPIV3Schema":
			c.add(at, "", "is what schema is already: put what is in it in its place")
		default:
			if slices.Contains(keywords(), name) {
				continue
			}
			reason := "is no keyword of a schema"
			if near := nearest(name, keywords()); near != "" {
				reason += fmt.Sprintf(": did you mean %s?", near)
			}
			c.add(at, "", "%s", reason)
		}
	}
}
