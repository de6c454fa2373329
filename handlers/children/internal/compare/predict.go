package compare

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// Predict returns what the API server will probably make of an object when a manager applies a configuration to it: the
// values of the configuration, without the fields and items that only this manager owned and that have left the
// configuration, and with everything else of the object. Defaults, admission and validation are not predicted, and a
// list whose items nobody owns one by one is replaced as a whole.
func Predict(entries ownership.Entries, manager string, config, object map[string]any) map[string]any {
	p := prediction{
		replacements: &replacements{Edits: Edits{Entries: entries, Manager: manager}}, entries: entries, manager: manager,
	}
	result, _ := p.apply(nil, config, object).(map[string]any)
	return result
}

type prediction struct {
	*replacements
	entries ownership.Entries
	manager string
}

// apply applies a part of the configuration to the same part of the object.
func (p prediction) apply(path fieldpath.Path, config, object any) any {
	switch config := config.(type) {
	case map[string]any:
		fields, _ := object.(map[string]any)
		result := map[string]any{}
		for name, value := range fields {
			if _, stays := config[name]; stays {
				continue
			}
			if at := append(path.Copy(), fieldpath.FieldNameElement(name)); !p.leaves(at) {
				result[name] = p.remaining(at, value)
			}
		}
		for name, value := range config {
			result[name] = p.apply(append(path.Copy(), fieldpath.FieldNameElement(name)), value, fields[name])
		}
		return result
	case []any:
		items, _ := object.([]any)
		switch {
		case len(p.keysOf(path)) > 0:
			return p.applyItems(path, config, items)
		case len(p.elements(path)) > 0: // a set
			return p.applySet(path, config, items)
		}
	}
	return runtime.DeepCopyJSONValue(config)
}

// applyItems applies a list with keys. Items of others stay at their end.
func (p prediction) applyItems(path fieldpath.Path, config, items []any) []any {
	others, result := p.itemsOf(path, items), []any{}
	for _, item := range config {
		fields, _ := item.(map[string]any)
		other, found := others.take(fields)
		if !found {
			result = append(result, runtime.DeepCopyJSONValue(item))
			continue
		}
		at := path.Copy()
		if element, found := p.elementOf(path, other); found {
			at = append(at, element)
		}
		result = append(result, p.apply(at, item, other))
	}
	for _, other := range others.rest() {
		element, found := p.elementOf(path, other)
		if at := append(path.Copy(), element); !found || !p.leaves(at) {
			result = append(result, runtime.DeepCopyJSONValue(other))
		}
	}
	return result
}

// applySet applies a list whose items are their own keys.
func (p prediction) applySet(path fieldpath.Path, config, items []any) []any {
	result, elements := runtime.DeepCopyJSONValue(config).([]any), p.elements(path)
	for _, item := range items {
		i := slices.IndexFunc(elements, func(element fieldpath.PathElement) bool { return ownership.Matches(item, element) })
		isDesired := slices.Contains(config, item)
		if !isDesired && (i < 0 || !p.leaves(append(path.Copy(), elements[i]))) {
			result = append(result, item)
		}
	}
	return result
}

// leaves reports whether nobody but the manager owns a path, or a part of it.
func (p prediction) leaves(path fieldpath.Path) bool {
	owners := p.entries.OwnersOf(path)
	return len(owners) > 0 && !slices.ContainsFunc(owners, func(entry ownership.Entry) bool {
		return !entry.IsApplier(p.manager)
	})
}

// remaining returns what remains of a value that has left the configuration, and parts of which others own, or nobody.
func (p prediction) remaining(path fieldpath.Path, value any) any {
	switch value := value.(type) {
	case map[string]any:
		if len(p.entries.OwnersOf(path)) > 0 {
			return p.apply(path, map[string]any{}, value)
		}
	case []any:
		if len(p.elements(path)) > 0 {
			return p.apply(path, []any{}, value)
		}
	}
	return runtime.DeepCopyJSONValue(value)
}
