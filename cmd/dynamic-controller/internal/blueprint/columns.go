package blueprint

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// plainPath is a path of names alone. What another selects is not known before there is an object.
var plainPath = regexp.MustCompile(`^(\.[A-Za-z_][A-Za-z0-9_-]*)+$`)

// checkColumns refuses columns of fields that the schema has not. Kubernetes takes them, and prints them empty.
func checkColumns(authors []apiextensionsv1.CustomResourceColumnDefinition, root *apiextensionsv1.JSONSchemaProps, c *collector) {
	for i, column := range authors {
		if !plainPath.MatchString(column.JSONPath) {
			continue
		}
		s := root
		names := strings.Split(column.JSONPath[1:], ".")
		if !slices.Contains([]string{"spec", "status"}, names[0]) {
			continue
		}
		for _, name := range names {
			if s.AdditionalProperties != nil || s.XPreserveUnknownFields != nil || s.XEmbeddedResource {
				break
			}
			next, has := s.Properties[name]
			if !has {
				reason := fmt.Sprintf("%s: the schema has no such field", column.JSONPath)
				if near := nearest(name, slices.Sorted(maps.Keys(s.Properties))); near != "" {
					reason += fmt.Sprintf(": did you mean %s?", near)
				}
				c.add(fmt.Sprintf("%s.printerColumns[%d].jsonPath", typePath, i), "", "%s", reason)
				break
			}
			s = &next
		}
	}
}
