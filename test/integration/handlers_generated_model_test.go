package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// template is a desired child as the API server sees it: its fields, and their values in the form in which they are
// stored. Both are the result of a dry run.
type template struct {
	object, stored *unstructured.Unstructured
	gvr            schema.GroupVersionResource
	fields         *fieldpath.Set
}

// newTemplate returns the error of the API server if it refuses the object.
func (g *generated) newTemplate(object *unstructured.Unstructured) (*template, error) {
	gvk := object.GroupVersionKind()
	mapping, err := g.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	g.noError(err)
	t := &template{object: object, gvr: mapping.Resource}
	config := object.DeepCopy()
	delete(config.Object, "status")
	config.SetName(g.name + "-new")
	t.stored, err = g.in(t.gvr, g.namespace).Apply(g.Context(), config.GetName(), config, metav1.ApplyOptions{
		FieldManager: platformName, DryRun: []string{metav1.DryRunAll},
	})
	if err != nil {
		return nil, err
	}
	t.fields, _ = g.owners(t.stored)
	return t, nil
}

// owners returns the fields that the Reconciler has applied, without those that make the object its child, and the
// entries of the other managers.
func (g *generated) owners(object *unstructured.Unstructured) (ours *fieldpath.Set, others []owner) {
	ours = fieldpath.NewSet()
	for _, entry := range object.GetManagedFields() {
		fields := fieldpath.NewSet()
		if entry.FieldsV1 != nil {
			g.noError(fields.FromJSON(bytes.NewReader(entry.FieldsV1.GetRawBytes())))
		}
		if entry.Manager != platformName || entry.Operation != metav1.ManagedFieldsOperationApply {
			others = append(others, owner{entry, fields})
			continue
		}
		for path := range fields.All() {
			if !isMark(path) {
				ours.Insert(path.Copy())
			}
		}
	}
	return ours, others
}

// beforeFirstApply is the manager that the API server invents for an object whose managedFields were cleared.
const beforeFirstApply = "before-first-apply"

// isAtomicMap reports whether a map in testdata is owned as a whole.
func isAtomicMap(path fieldpath.Path) bool {
	names := []string{"selector", "podSelector", "labelSelector", "atomicMap", "atomic", "settings"}
	return len(path) > 0 && path[len(path)-1].FieldName != nil && slices.Contains(names, *path[len(path)-1].FieldName)
}

// owner is an entry of managedFields.
type owner struct {
	metav1.ManagedFieldsEntry
	fields *fieldpath.Set
}

// owns reports whether a set contains a path or a part of it.
func owns(set *fieldpath.Set, path fieldpath.Path) bool {
	return set.Has(path) || !below(set, path).Empty()
}

func below(set *fieldpath.Set, path fieldpath.Path) *fieldpath.Set {
	for _, element := range path {
		set = set.WithPrefix(element)
	}
	return set
}

// isMark reports whether a field is metadata with which the Reconciler marks its children.
func isMark(path fieldpath.Path) bool {
	text := path.String()
	return strings.HasPrefix(text, ".metadata.ownerReferences") ||
		text == ".metadata.labels" || text == ".metadata.annotations" || strings.HasPrefix(text, ".metadata.") &&
		strings.Contains(text, platformName+"/")
}

// isKey reports whether a path leads to a field that identifies an item of a list.
func isKey(path fieldpath.Path) bool {
	last := len(path) - 1
	return last > 0 && path[last].FieldName != nil && path[last-1].Key != nil &&
		slices.ContainsFunc(*path[last-1].Key, func(key valueField) bool { return key.Name == *path[last].FieldName })
}

// isItem reports whether a path leads to an item of a list.
func isItem(path fieldpath.Path) bool { return path[len(path)-1].FieldName == nil }

func matches(item any, element fieldpath.PathElement) bool {
	if element.Value != nil {
		return isEqual(item, (*element.Value).Unstructured())
	}
	fields, isMap := item.(map[string]any)
	return isMap && element.Key != nil && !slices.ContainsFunc(*element.Key, func(key valueField) bool {
		return !isEqual(fields[key.Name], key.Value.Unstructured())
	})
}

// valueAt returns the value at a path of an object.
func valueAt(value any, path fieldpath.Path) (any, bool) {
	for _, element := range path {
		if element.FieldName != nil {
			fields, _ := value.(map[string]any)
			next, has := fields[*element.FieldName]
			if !has {
				return nil, false
			}
			value = next
			continue
		}
		items, _ := value.([]any)
		i := slices.IndexFunc(items, func(item any) bool { return matches(item, element) })
		if i < 0 {
			return nil, false
		}
		value = items[i]
	}
	return value, true
}

// changedAt returns an object in which the value at a path is the result of change. Missing parts are added.
func changedAt(value any, path fieldpath.Path, change func(old any) any) any {
	if len(path) == 0 {
		return change(value)
	}
	element, rest := path[0], path[1:]
	if element.FieldName != nil {
		fields, isMap := value.(map[string]any)
		if !isMap {
			fields = map[string]any{}
		}
		if next := changedAt(fields[*element.FieldName], rest, change); next != removed {
			fields[*element.FieldName] = next
		} else {
			delete(fields, *element.FieldName)
		}
		return fields
	}
	items, _ := value.([]any)
	i := slices.IndexFunc(items, func(item any) bool { return matches(item, element) })
	if i < 0 {
		i, items = len(items), append(items, newItem(element))
	}
	if next := changedAt(items[i], rest, change); next != removed {
		items[i] = next
	} else {
		items = slices.Delete(items, i, i+1)
	}
	return items
}

// removed is returned by a change that removes a value.
var removed any = &struct{ byte }{}

func newItem(element fieldpath.PathElement) any {
	if element.Value != nil {
		return (*element.Value).Unstructured()
	}
	item := map[string]any{}
	for _, key := range *element.Key {
		item[key.Name] = key.Value.Unstructured()
	}
	return item
}

func without(object map[string]any, path fieldpath.Path) {
	if _, found := valueAt(object, path); found {
		changedAt(object, path, func(any) any { return removed })
	}
}

// ideal returns the object that an apply of the template must result in. It has the fields of the template, and lacks
// those that only the Reconciler owns. The given items of others are removed.
func (g *generated) ideal(live *unstructured.Unstructured, dropped []fieldpath.Path) *unstructured.Unstructured {
	ours, others := g.owners(live)
	foreign := fieldpath.NewSet()
	for _, other := range others {
		foreign = foreign.Union(other.fields)
	}
	object := live.DeepCopy().Object
	for path := range ours.Difference(g.template.fields).All() {
		if isKey(path) {
			continue // it stays with its item
		}
		for n := range path {
			part := path[:n+1]
			isWhole := n+1 == len(path) || isItem(part) && ours.Has(part) || isNamed(part)
			if isWhole && !owns(g.template.fields, part) && !foreign.Has(part) &&
				(isItem(part) || !owns(foreign, part)) {
				without(object, part.Copy())
				break
			}
		}
	}
	for _, path := range dropped {
		without(object, path)
	}
	g.template.setIn(object)
	return &unstructured.Unstructured{Object: object}
}

// isNamed reports whether a path leads to a field of a struct, which an apply removes with its defaults. The fields of
// other maps stay as long as they have fields.
func isNamed(path fieldpath.Path) bool {
	text := path.String()
	return path[len(path)-1].FieldName != nil && !strings.HasPrefix(text, ".metadata") &&
		!strings.HasPrefix(text, ".spec.objects.") && !strings.HasPrefix(text, ".spec.free.")
}

// setIn sets the fields of the template in an object. If a list has an item twice, an apply replaces both.
func (t *template) setIn(object map[string]any) {
	for path := range t.fields.All() {
		path = path.Copy()
		value, has := valueAt(t.stored.Object, path)
		old, _ := valueAt(object, path)
		switch {
		case t.isPart(path, old) && (!isItem(path) || occurrences(object, path) == 1):
			continue
		case !has:
			without(object, path) // the API server does not store it
			continue
		}
		for n := occurrences(object, path); n > 1; n = occurrences(object, path) {
			for range n {
				without(object, path)
			}
		}
		changedAt(object, path, func(old any) any {
			if t.isPart(path, old) {
				return old
			}
			return runtime.DeepCopyJSONValue(value)
		})
	}
}

// isPart reports whether a map can have fields that are not in the template, or are set on their own.
func (t *template) isPart(path fieldpath.Path, old any) bool {
	_, isMap := old.(map[string]any)
	return isMap && (!below(t.fields, path).Empty() || isItem(path) || t.isEmpty(path) && !isAtomicMap(path))
}

// isEmpty reports whether the template has a null, or an empty map or list, at a path.
func (t *template) isEmpty(path fieldpath.Path) bool {
	value, has := valueAt(t.object.Object, path)
	fields, isMap := value.(map[string]any)
	items, isList := value.([]any)
	return has && value == nil || isMap && len(fields) == 0 || isList && len(items) == 0
}

// occurrences returns how often a list has an item.
func occurrences(object map[string]any, path fieldpath.Path) (n int) {
	list, _ := valueAt(object, path[:len(path)-1])
	items, _ := list.([]any)
	for _, item := range items {
		if matches(item, path[len(path)-1]) {
			n++
		}
	}
	return n
}

// replacement is a list from which items of the template are missing, and which has items that others created since.
type replacement struct {
	list    fieldpath.Path
	missing []fieldpath.Path
	created []fieldpath.Path
}

// replacements returns the lists with missing items. If the Reconciler cannot know which items existed before, all
// items that updates created count as created since.
func (g *generated) replacements(live *unstructured.Unstructured, all bool) map[string]*replacement {
	lists := map[string]*replacement{}
	for path := range g.template.fields.All() {
		element := path[len(path)-1]
		list := path[:len(path)-1].Copy()
		items, _ := valueAt(live.Object, list)
		if _, found := valueAt(live.Object, path); found || element.Key == nil || items == nil {
			continue
		}
		r := lists[list.String()]
		if r == nil {
			r = &replacement{list: list}
			r.created = g.created(live, list, element, all)
			lists[list.String()] = r
		}
		r.missing = append(r.missing, path.Copy())
	}
	return lists
}

// created returns the items of others that an update created. Items from before the managedFields were cleared do not
// count.
func (g *generated) created(
	live *unstructured.Unstructured, list fieldpath.Path, like fieldpath.PathElement, all bool,
) (created []fieldpath.Path) {
	_, others := g.owners(live)
	items, _ := valueAt(live.Object, list)
	values, _ := items.([]any)
	for _, item := range values {
		element, isMap := elementOf(item, like)
		path := append(list.Copy(), element)
		if !isMap || owns(g.template.fields, path) {
			continue
		}
		if _, existed := valueAt(g.before.Object, path); existed && !all {
			continue
		}
		owners := slices.DeleteFunc(slices.Clone(others), func(other owner) bool { return !owns(other.fields, path) })
		isOld := slices.ContainsFunc(owners, func(owner owner) bool {
			return owner.Operation != metav1.ManagedFieldsOperationUpdate || owner.Manager == beforeFirstApply
		})
		if len(owners) > 0 && !isOld {
			created = append(created, path)
		}
	}
	return created
}

// elementOf returns the path element of an item in a list with the keys of another element.
func elementOf(item any, like fieldpath.PathElement) (fieldpath.PathElement, bool) {
	fields, isMap := item.(map[string]any)
	keys := slices.Clone(*like.Key)
	for i, key := range keys {
		keys[i].Value = newValue(fields[key.Name])
	}
	return fieldpath.PathElement{Key: &keys}, isMap
}

// edited returns the created items that have all fields of a missing item except its keys, one to one. Items are unsure
// if the template has values in another form than the API server, which the Reconciler does not know.
func (g *generated) edited(live *unstructured.Unstructured, r *replacement) (sure, unsure []fieldpath.Path) {
	normal := map[string]any{}
	g.template.setIn(normal)
	candidates, uses := make([][]fieldpath.Path, len(r.missing)), map[string]int{}
	for i, missing := range r.missing {
		item, _ := valueAt(normal, missing)
		fields, _ := item.(map[string]any)
		rest := maps.Clone(fields)
		for _, key := range *missing[len(missing)-1].Key {
			delete(rest, key.Name)
		}
		for _, path := range r.created {
			if other, _ := valueAt(live.Object, path); len(rest) > 0 && covers(rest, other) {
				candidates[i] = append(candidates[i], path)
				uses[path.String()]++
			}
		}
	}
	for i, found := range candidates {
		switch {
		case len(found) == 1 && uses[found[0].String()] == 1 && g.isNormal(r.missing[i], normal):
			sure = append(sure, found...)
		default:
			unsure = append(unsure, found...)
		}
	}
	return sure, unsure
}

// isNormal reports whether the template has the item in the form in which it is stored.
func (g *generated) isNormal(path fieldpath.Path, normal map[string]any) bool {
	raw, hasRaw := valueAt(g.template.object.Object, path)
	stored, hasStored := valueAt(normal, path)
	return hasRaw && hasStored && isEqual(raw, stored)
}

// expectation is what the API server makes of the ideal objects.
type expectation struct {
	accepted []*unstructured.Unstructured
	refused  []error
}

// expect returns the expectation for an edited child. It contains several objects if the promises leave a choice.
func (g *generated) expect(live *unstructured.Unstructured) (e expectation) {
	variants := map[string][]fieldpath.Path{}
	for _, all := range []bool{false, g.restarted} {
		lists := g.replacements(live, all)
		var sure, unsure []fieldpath.Path
		for _, r := range lists {
			these, those := g.edited(live, r)
			sure, unsure = append(sure, these...), append(unsure, those...)
		}
		switch g.again {
		case no:
			sure, unsure = nil, nil
		case maybe:
			sure, unsure = nil, append(sure, unsure...)
		}
		for _, dropped := range [][]fieldpath.Path{sure, append(slices.Clone(sure), unsure...)} {
			if _, known := variants[fmt.Sprint(dropped)]; !known {
				variants[fmt.Sprint(dropped)] = dropped
				g.expectWithout(live, dropped, lists, &e)
			}
		}
	}
	return e
}

// expectWithout adds the result for one choice of dropped items. If the API server refuses it, and names a list with no
// more created items than missing ones, the created items are dropped as well.
func (g *generated) expectWithout(
	live *unstructured.Unstructured, dropped []fieldpath.Path, lists map[string]*replacement, e *expectation,
) {
	now, err := g.dryRun(g.ideal(live, dropped))
	if err == nil {
		e.accepted = append(e.accepted, now)
		return
	}
	more := slices.Clone(dropped)
	for _, r := range lists {
		if len(r.created) > 0 && len(r.created) <= len(r.missing) && names(err, r.list) {
			more = append(more, r.created...)
		}
	}
	if len(more) > len(dropped) {
		if now, errWithout := g.dryRun(g.ideal(live, more)); errWithout == nil {
			e.accepted = append(e.accepted, now)
			return
		}
	}
	e.refused = append(e.refused, err)
}

// names reports whether an error of the API server names a list, or a part of it.
func names(err error, list fieldpath.Path) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	var names []string
	for _, element := range list {
		if element.FieldName != nil {
			names = append(names, *element.FieldName)
		}
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(cause metav1.StatusCause) bool {
		field := indexes.ReplaceAllString(cause.Field, "") + "."
		return strings.HasPrefix(field, strings.Join(names, ".")+".")
	})
}

func (g *generated) dryRun(object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	object.SetManagedFields([]metav1.ManagedFieldsEntry{{}})
	return g.in(g.template.gvr, g.namespace).Update(g.Context(), object, metav1.UpdateOptions{
		FieldManager: "model", DryRun: []string{metav1.DryRunAll},
	})
}

// isUnclear reports whether it is not defined which fields of others an apply keeps: the template has moved to another
// version while others own fields in the old one, or the child has an item twice.
func (g *generated) isUnclear(live *unstructured.Unstructured) bool {
	version := g.template.object.GetAPIVersion()
	isMoved := slices.ContainsFunc(live.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == platformName && entry.APIVersion != version
	})
	_, others := g.owners(live)
	for _, other := range others {
		if isMoved && other.APIVersion != version {
			return true
		}
	}
	all, isTwice := g.template.fields, false
	for _, other := range others {
		all = all.Union(other.fields)
	}
	for path := range all.All() {
		isTwice = isTwice ||
			len(path) > 0 && isItem(path) && occurrences(live.Object, path) > 1 // All does not support an early return
	}
	return isTwice
}

// content returns the part of an object that is compared. Empty values are left out, because an apply can leave an
// empty map behind. Lists are sorted, because the order of lists with keys is not defined.
func content(object *unstructured.Unstructured) map[string]any {
	copied := object.DeepCopy().Object
	metadata := copied["metadata"].(map[string]any)
	part := map[string]any{}
	for _, name := range []string{"labels", "annotations"} {
		values, _ := metadata[name].(map[string]any)
		maps.DeleteFunc(values, func(key string, _ any) bool {
			return strings.HasPrefix(key, platformName+"/") || key == "deprecated.daemonset.template.generation"
		})
		part[name] = values
	}
	copied["metadata"] = part
	delete(copied, "status")
	delete(copied, "apiVersion")
	compact, _ := compacted(copied).(map[string]any)
	return compact
}

func compacted(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name, field := range value {
			if value[name] = compacted(field); value[name] == nil {
				delete(value, name)
			}
		}
		if len(value) > 0 {
			return value
		}
		return nil
	case []any:
		items := make([]any, len(value))
		for i, item := range value {
			items[i] = compacted(item)
		}
		slices.SortFunc(items, func(a, b any) int { return strings.Compare(mustJSON(a), mustJSON(b)) })
		if len(items) > 0 {
			return items
		}
		return nil
	}
	return value
}

func mustJSON(value any) string { return string(must(json.Marshal(value))) }

// missingFields returns the fields of the template that an object does not have with the same value.
func (g *generated) missingFields(object *unstructured.Unstructured) (missing []string) {
	for path := range g.template.fields.All() {
		want, has := valueAt(g.template.stored.Object, path)
		got, found := valueAt(object.Object, path)
		if g.template.isPart(path, got) {
			continue
		}
		if has != found || has && !isEqual(want, got) {
			missing = append(missing, fmt.Sprintf("%s is %s, not %s", path, mustJSON(got), mustJSON(want)))
		}
	}
	return missing
}
