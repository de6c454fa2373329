// Package keptfields parses the paths of the fields of children that are kept once they exist.
package keptfields

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// WholeObject is the path that stands for all fields except apiVersion, kind and metadata.
const WholeObject = "*"

// IsProtective reports whether drift of a kind can give permissions, or open connections, that nobody should have.
func IsProtective(kind schema.GroupKind) bool {
	return kind.Group == "rbac.authorization.k8s.io" || strings.HasSuffix(kind.Kind, "NetworkPolicy")
}

// Parse parses the path of a field that children of a kind keep. It returns nil for WholeObject. It checks the path
// only, not whether the kind has such a field.
func Parse(kind schema.GroupKind, text string) (fieldpath.Path, error) {
	if IsProtective(kind) {
		return nil, fmt.Errorf("fields of a %s must not be kept, because others could add permissions or connections",
			kind.Kind)
	}
	if text == WholeObject {
		return nil, nil
	}
	path, err := parsePath(text)
	if err == nil {
		err = checkPath(kind, path)
	}
	if err != nil {
		return nil, fmt.Errorf("path %q: %w", text, err)
	}
	return path, nil
}

func checkPath(kind schema.GroupKind, path fieldpath.Path) error {
	switch first := *path[0].FieldName; {
	case first == "stringData" && kind == schema.GroupKind{Kind: "Secret"}:
		return errors.New("use data, in which the API server stores stringData")
	case first == "apiVersion", first == "kind", first == "status":
		return fmt.Errorf("%s cannot be kept", first)
	case first == "metadata" && (len(path) != 3 || path[1].FieldName == nil ||
		*path[1].FieldName != "labels" && *path[1].FieldName != "annotations"):
		return errors.New(`of metadata, only single labels and annotations can be kept, such as metadata.annotations["a"]`)
	}
	return nil
}

// parsePath parses the path of a field.
func parsePath(text string) (path fieldpath.Path, err error) {
	for rest := text; rest != "" || len(path) == 0; {
		var element fieldpath.PathElement
		if strings.HasPrefix(rest, "[") && len(path) > 0 {
			element, rest, err = parseBrackets(rest)
		} else {
			if len(path) > 0 {
				rest = strings.TrimPrefix(rest, ".")
			}
			name := rest
			if end := strings.IndexAny(rest, ".["); end >= 0 {
				name = rest[:end]
			}
			if !isFieldName(name) {
				return nil, errors.New(`must consist of field names that are separated by dots, such as spec.replicas; ` +
					`put other keys in brackets and quotes, such as data["tls.key"]`)
			}
			element, rest = fieldpath.FieldNameElement(name), rest[len(name):]
		}
		if err != nil {
			return nil, err
		}
		path = append(path, element)
	}
	if path[len(path)-1].FieldName == nil {
		return nil, errors.New("must end with a field, because items of a list cannot be kept as a whole")
	}
	return path, nil
}

// parseBrackets parses a quoted key or the keys of a list item.
func parseBrackets(text string) (element fieldpath.PathElement, rest string, err error) {
	if strings.HasPrefix(text, `["`) {
		key, rest, closed := strings.Cut(text[2:], `"]`)
		if !closed || key == "" || strings.Contains(key, `"`) {
			return element, "", errors.New(`a key in brackets must have the form ["key"]`)
		}
		return fieldpath.FieldNameElement(key), rest, nil
	}
	selector, rest, closed := strings.Cut(text[1:], "]")
	var keys value.FieldList
	for pair := range strings.SplitSeq(selector, ",") {
		name, text, isPair := strings.Cut(strings.TrimSpace(pair), "=")
		if !closed || !isPair || !isFieldName(name) || text == "" {
			return element, "", errors.New("an item of a list must be selected by its keys, such as containers[name=web]")
		}
		keys = append(keys, value.Field{Name: name, Value: value.NewValueInterface(scalarOf(text))})
	}
	keys.Sort()
	return fieldpath.PathElement{Key: &keys}, rest, nil
}

// scalarOf returns an integer or a text.
func scalarOf(text string) any {
	var n int64
	if _, err := fmt.Sscanf(text, "%d", &n); err == nil && fmt.Sprint(n) == text {
		return n
	}
	return strings.Trim(text, `"`)
}

func isFieldName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}
