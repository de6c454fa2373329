package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// draw returns a random part of a pattern. The format of patterns is described in testdata/templates.yaml.
func draw(random *rand.Rand, pattern any) any {
	switch pattern := pattern.(type) {
	case map[string]any:
		part := map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(pattern)) {
			field, required := strings.CutSuffix(name, "!")
			if required || random.IntN(5) < 3 {
				part[field] = draw(random, pattern[name])
			}
		}
		return part
	case []any:
		part := []any{}
		for _, i := range random.Perm(len(pattern)) {
			if len(part) == 0 || random.IntN(5) < 3 {
				part = append(part, draw(random, pattern[i]))
			}
		}
		return part
	case string:
		alternative := pick(random, strings.Split(pattern, "|"))
		if alternative == "" {
			return ""
		}
		var value any
		if err := yaml.Unmarshal([]byte(alternative), &value); err != nil {
			panic(err)
		}
		return integers(value)
	}
	return integers(pattern)
}

// integers converts integers as unstructured objects require it.
func integers(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name := range value {
			value[name] = integers(value[name])
		}
	case []any:
		for i := range value {
			value[i] = integers(value[i])
		}
	case float64:
		if value == float64(int64(value)) {
			return int64(value)
		}
	}
	return value
}

func pick[T any](random *rand.Rand, all []T) T { return all[random.IntN(len(all))] }

// mixed returns an object with random parts of two others.
func mixed(random *rand.Rand, a, b any) any {
	x, isMap := a.(map[string]any)
	y, isAlsoMap := b.(map[string]any)
	if !isMap || !isAlsoMap {
		return runtime.DeepCopyJSONValue(pick(random, []any{a, b}))
	}
	part := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(x)) {
		if other, has := y[name]; has {
			part[name] = mixed(random, x[name], other)
		} else if random.IntN(2) == 0 {
			part[name] = runtime.DeepCopyJSONValue(x[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(y)) {
		if _, has := x[name]; !has && random.IntN(2) == 0 {
			part[name] = runtime.DeepCopyJSONValue(y[name])
		}
	}
	return part
}

// node is a value in an object.
type node struct {
	pointer []string
	value   any
}

// nodesOf returns the values in an object that random edits change, in a fixed order.
func nodesOf(object map[string]any) (nodes []node) {
	var collect func(pointer []string, value any)
	collect = func(pointer []string, value any) {
		nodes = append(nodes, node{slices.Clone(pointer), value})
		switch value := value.(type) {
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(value)) {
				collect(append(pointer, name), value[name])
			}
		case []any:
			for i, item := range value {
				collect(append(pointer, strconv.Itoa(i)), item)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		switch name {
		case "apiVersion", "kind", "status":
		case "metadata":
			for _, name := range []string{"annotations", "labels"} {
				if value, has := object["metadata"].(map[string]any)[name]; has {
					collect([]string{"metadata", name}, value)
				}
			}
		default:
			collect([]string{name}, object[name])
		}
	}
	return nodes
}

func withType[T any](nodes []node) []node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n node) bool {
		_, is := n.value.(T)
		return !is
	})
}

func scalars(nodes []node) []node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n node) bool {
		switch n.value.(type) {
		case map[string]any, []any:
			return true
		}
		return false
	})
}

func at(object any, pointer []string) (any, bool) {
	for _, name := range pointer {
		switch value := object.(type) {
		case map[string]any:
			found, has := value[name]
			if !has {
				return nil, false
			}
			object = found
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(value) {
				return nil, false
			}
			object = value[i]
		default:
			return nil, false
		}
	}
	return object, true
}

// operation is one operation of a JSON patch.
type operation map[string]any

func newOperation(op string, pointer []string, value any) operation {
	var path strings.Builder
	for _, name := range pointer {
		path.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
	}
	o := operation{"op": op, "path": path.String()}
	if op != "remove" {
		o["value"] = value
	}
	return o
}

// varied returns another scalar. It prefers the value that the donor has at the same place.
func varied(random *rand.Rand, n node, donor map[string]any) any {
	if other, has := at(donor, n.pointer); has && random.IntN(2) == 0 && fmt.Sprint(other) != fmt.Sprint(n.value) {
		return other
	}
	switch value := n.value.(type) {
	case bool:
		return !value
	case int64:
		return value + pick(random, []int64{1, 2, -1, 8000})
	case float64:
		return value + 1
	case string:
		return pick(random, []string{"x", "y", "a", "b", "other", "1", "2", "http", ""})
	}
	return "x"
}

// randomOperation returns an operation that changes any part of an object. The donor has further values.
func randomOperation(random *rand.Rand, object, donor map[string]any) operation {
	nodes := nodesOf(object)
	if len(nodes) == 0 {
		return newOperation("add", []string{"metadata", "labels"}, map[string]any{"foreign": "x"})
	}
	lists := slices.DeleteFunc(withType[[]any](nodes), func(n node) bool { return len(n.value.([]any)) == 0 })
	switch choice := random.IntN(8); {
	case choice == 0:
		return newOperation("remove", pick(random, nodes).pointer, nil)
	case choice <= 2 && len(scalars(nodes)) > 0:
		n := pick(random, scalars(nodes))
		return newOperation("replace", n.pointer, varied(random, n, donor))
	case choice <= 4 && len(lists) > 0:
		return changedList(random, pick(random, lists), donor)
	case choice == 5:
		if maps := withType[map[string]any](nodes); len(maps) > 0 {
			n := pick(random, maps)
			return newOperation("add", append(n.pointer, pick(random, []string{"foreign", "a", "b", "c"})),
				pick(random, []any{"x", "y", "1"}))
		}
	}
	// A value of the donor is inserted.
	n := node{[]string{"metadata", "labels"}, map[string]any{"foreign": "x"}}
	if others := nodesOf(donor); len(others) > 0 {
		n = pick(random, others)
	}
	if parent, has := at(object, n.pointer[:len(n.pointer)-1]); has {
		if _, isMap := parent.(map[string]any); isMap {
			return newOperation("add", n.pointer, n.value)
		}
	}
	return newOperation("remove", pick(random, nodes).pointer, nil)
}

// changedList adds an item to a list, changes one, or moves one.
func changedList(random *rand.Rand, n node, donor map[string]any) operation {
	items := n.value.([]any)
	i := random.IntN(len(items))
	pointer := append(n.pointer, strconv.Itoa(i))
	changed := runtime.DeepCopyJSONValue(items[i])
	if fields := scalars(nodesOf(map[string]any{"item": changed})); len(fields) > 0 {
		field := pick(random, fields)
		rest := field.pointer[1:]
		field.pointer = append(slices.Clone(pointer), rest...)
		changed = replaced(changed, rest, varied(random, field, donor))
	}
	switch random.IntN(5) {
	case 0:
		o := newOperation("move", append(n.pointer, strconv.Itoa(random.IntN(len(items)))), nil)
		o["from"] = newOperation("", pointer, nil)["path"]
		delete(o, "value")
		return o
	case 1, 2:
		return newOperation("replace", pointer, changed)
	case 3:
		if others, has := at(donor, n.pointer); has {
			if others, isList := others.([]any); isList && len(others) > 0 {
				changed = pick(random, others)
			}
		}
	}
	return newOperation("add", append(n.pointer, "-"), changed)
}

func replaced(value any, pointer []string, with any) any {
	if len(pointer) == 0 {
		return with
	}
	switch value := value.(type) {
	case map[string]any:
		value[pointer[0]] = replaced(value[pointer[0]], pointer[1:], with)
	case []any:
		i, _ := strconv.Atoi(pointer[0])
		value[i] = replaced(value[i], pointer[1:], with)
	}
	return value
}

// edit changes the child as another client would do it. It returns a description, and the error of the API server.
func (g *generated) edit() (string, error) {
	gvr, donor := g.template.gvr, g.draw()
	if others := g.versions(); len(others) > 1 {
		donor.SetAPIVersion(pick(g.random, others))
		gvr.Version = donor.GroupVersionKind().Version
	}
	objects := g.in(gvr, g.namespace)
	live, err := objects.Get(g.Context(), g.name, metav1.GetOptions{})
	g.noError(err)
	patch := func(manager string, operations ...operation) (string, error) {
		content, err := json.Marshal(operations)
		g.noError(err)
		_, err = objects.Patch(g.Context(), g.name, types.JSONPatchType, content, metav1.PatchOptions{FieldManager: manager})
		return fmt.Sprintf("%s patches the child as %s: %s", manager, gvr.Version, content), err
	}
	manager := pick(g.random, []string{"kubectl-edit", "robot", "operator"})
	switch choice := g.random.IntN(40); {
	case choice == 0:
		return patch(manager, newOperation("replace", []string{"metadata", "managedFields"}, []any{map[string]any{}}))
	case choice <= 2:
		return patch(manager, g.changedOwners(live))
	case choice == 3:
		return patch(manager, newOperation("remove", []string{"metadata", "ownerReferences"}, nil))
	case choice == 4:
		// A whole object is written, for example by kubectl replace.
		for name, value := range donor.Object {
			if name != "metadata" {
				live.Object[name] = value
			}
		}
		_, err := objects.Update(g.Context(), live, metav1.UpdateOptions{FieldManager: manager})
		return fmt.Sprintf("%s replaces the child with %s", manager, asJSON(donor)), err
	case choice <= 13:
		if g.random.IntN(2) == 0 {
			n := scalars(nodesOf(g.template.object.Object))
			copied := g.template.object.DeepCopy()
			for range min(g.random.IntN(3), len(n)) {
				field := pick(g.random, n)
				replaced(copied.Object, field.pointer, varied(g.random, field, donor.Object))
			}
			copied.SetAPIVersion(donor.GetAPIVersion())
			donor = copied
		}
		manager, force := pick(g.random, []string{"applier-a", "applier-b"}), g.random.IntN(3) > 0
		donor.SetName(g.name)
		delete(donor.Object, "status")
		donor.SetResourceVersion(live.GetResourceVersion()) // prevents that it is created
		_, err := objects.Apply(g.Context(), g.name, donor, metav1.ApplyOptions{FieldManager: manager, Force: force})
		return fmt.Sprintf("%s applies %s, forced: %t", manager, asJSON(donor), force), err
	}
	operations := []operation{randomOperation(g.random, live.Object, donor.Object)}
	for g.random.IntN(3) == 0 {
		operations = append(operations, randomOperation(g.random, live.Object, donor.Object))
	}
	return patch(manager, operations...)
}

// changedOwners removes an entry of managedFields, or adds one with a version that is not served. Such an entry remains
// when a version is removed. It names fields that exist and are not in the template, and one that does not exist.
func (g *generated) changedOwners(live *unstructured.Unstructured) operation {
	entries := live.GetManagedFields()
	if g.random.IntN(2) == 0 && len(entries) > 1 {
		pointer := []string{"metadata", "managedFields", strconv.Itoa(g.random.IntN(len(entries)))}
		return newOperation("remove", pointer, nil)
	}
	group := g.template.gvr.GroupVersion()
	group.Version = "v0"
	return newOperation("add", []string{"metadata", "managedFields", "-"}, map[string]any{
		"manager": "old", "operation": pick(g.random, []string{"Update", "Apply"}), "apiVersion": group.String(),
		"time": "2020-01-01T00:00:00Z", "fieldsType": "FieldsV1",
		"fieldsV1": map[string]any{"f:gone": map[string]any{}, "f:metadata": map[string]any{
			"f:labels": map[string]any{"f:foreign": map[string]any{}}}},
	})
}

func asJSON(object *unstructured.Unstructured) string {
	text, err := json.Marshal(object.Object)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
