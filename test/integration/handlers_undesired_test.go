package integration

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/handlers/children"
)

// reason returns the reason of the child after the last reconcile.
func (c *converging) reason() string { return c.result.Children[0].Reason }

// An item that can be an edited one is reported until it is gone, or until the template has it.
func TestHandlers_UndesiredItemsOutlastTheTemplate(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(c *converging, child *unstructured.Unstructured){
		"a user removes the items": func(c *converging, _ *unstructured.Unstructured) {
			c.edit("kubectl-edit", deployments, "shop", `[{"op": "remove", "path": "`+containers+`/0/env/3"},
				{"op": "remove", "path": "`+containers+`/0/env/2"}]`)
		},
		"the template gets the items": func(c *converging, child *unstructured.Unstructured) {
			c.setEnv(child, "A", "B", "C", "D")
		},
		"a user deletes the child": func(c *converging, _ *unstructured.Unstructured) { c.delete(deployments, "shop") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newConverging(t)
			child := c.parse(shopDeployment)
			c.settle(child)
			c.edit("kubectl-edit", deployments, "shop", `[
				{"op": "add", "path": "`+containers+`/0/env/-", "value": {"name": "C", "value": "1"}},
				{"op": "add", "path": "`+containers+`/0/env/-", "value": {"name": "D", "value": "1"}},
				{"op": "remove", "path": "`+containers+`/0/env/0"}]`)
			c.settle(child)
			for _, image := range []string{"nginx", "nginx:2", "nginx:3"} {
				c.setContainer(child, "image", image)
				c.settle(child)
				if c.reason() != children.ReasonUndesiredItem {
					t.Fatalf("with the image %s: got the reason %q, want %s", image, c.reason(), children.ReasonUndesiredItem)
				}
			}
			end(c, child)
			c.settle(child)
			if c.reason() != "" {
				t.Errorf("at the end: got the reason %q", c.reason())
			}
		})
	}
}

// setContainer sets a field of the container of a Deployment.
func (c *converging) setContainer(child *unstructured.Unstructured, field string, value any) {
	c.Helper()
	list, _, err := unstructured.NestedSlice(child.Object, containersPath...)
	c.noError(err)
	list[0].(map[string]any)[field] = value
	c.noError(unstructured.SetNestedSlice(child.Object, list, containersPath...))
}

func (c *converging) setEnv(child *unstructured.Unstructured, names ...string) {
	c.Helper()
	var env []any
	for _, name := range names {
		env = append(env, map[string]any{"name": name, "value": "1"})
	}
	c.setContainer(child, "env", env)
}

// Values that a program writes in Go are what the API server would receive as JSON.
func TestHandlers_ValuesWrittenInGo(t *testing.T) {
	t.Parallel()
	c := newConverging(t)
	type port struct {
		Port int32 `json:"port"`
	}
	gadget := newObject(c.gadgets, "Gadget", "", "g", nil)
	gadget.Object["metadata"] = map[string]any{"name": "g", "labels": map[string]string{"app": "x"}}
	gadget.Object["spec"] = map[string]any{
		"n": 3, "n32": int32(3), "f": float32(0.1), "names": []string{"a"}, "ports": []port{{80}},
		"nested": map[string]any{"list": []any{map[string]any{"deep": uint8(7)}}},
	}
	c.settle(gadget)
	spec := c.get(c.gadgets, c.namespace, "g").Object["spec"].(map[string]any)
	if spec["n"] != int64(3) || spec["f"] != 0.1 {
		t.Errorf("the spec is %v", spec)
	}
	gadget.Object["spec"].(map[string]any)["nested"] = map[string]any{"list": []any{map[string]any{"deep": uint8(8)}}}
	c.settle(gadget)
	now := c.get(c.gadgets, c.namespace, "g").Object
	list, _, _ := unstructured.NestedSlice(now, "spec", "nested", "list")
	if len(list) != 1 || list[0].(map[string]any)["deep"] != int64(8) {
		t.Errorf("the changed list is %v", list)
	}
}

// adopt reconciles the parent with a child that it adopts.
func (c *converging) adopt(child *unstructured.Unstructured) children.ChildResult {
	c.Helper()
	result, err := c.reconciler.Reconcile(c.Context(), c.id(c.parents, "p"), c.parent, adopting(child))
	c.noError(err)
	return result.Children[0]
}

// checkFieldFromBefore adopts the ConfigMap "adopted". It checks that the field "other" stays and is reported while it
// exists and is not desired.
func (c *converging) checkFieldFromBefore(isDesired bool) {
	c.Helper()
	child := newConfigMap("", "adopted", "new")
	for range 2 {
		got := c.adopt(child)
		if got.Reason != children.ReasonUndesiredField || got.Field != "data.other" || got.Manager != "before" {
			c.Errorf("got the reason %q, the field %q and the manager %q", got.Reason, got.Field, got.Manager)
		}
		child.Object["data"].(map[string]any)["key"] = "newer"
	}
	if now := c.get(configMaps, c.namespace, "adopted"); now.Object["data"].(map[string]any)["other"] != "x" {
		c.Errorf("the field of another manager is gone: %v", now.Object)
	}
	if isDesired {
		child.Object["data"].(map[string]any)["other"] = "x"
	} else {
		c.merge(configMaps, c.namespace, "adopted", `{"data":{"other":null}}`)
	}
	if got := c.adopt(child); got.Reason != "" {
		c.Errorf("at the end: got the reason %q for %q", got.Reason, got.Field)
	}
	delete(child.Object["data"].(map[string]any), "other")
	want := map[bool]string{true: children.ReasonUndesiredField}[isDesired] // it stays because of the manager "before"
	if got := c.adopt(child); got.Reason != want {
		c.Errorf("without the field in the desired child: got the reason %q, want %q", got.Reason, want)
	}
}

// Fields that others set before an object is adopted stay, and are reported until they are gone or desired.
func TestHandlers_FieldsFromBeforeAnAdoption(t *testing.T) {
	t.Parallel()
	before := newConfigMap("", "adopted", "old")
	before.Object["data"].(map[string]any)["other"] = "x"
	for name, put := range map[string]func(c *converging, object *unstructured.Unstructured) error{
		"created": func(c *converging, object *unstructured.Unstructured) error {
			_, err := c.in(configMaps, c.namespace).Create(c.Context(), object, metav1.CreateOptions{FieldManager: "before"})
			return err
		},
		"applied": func(c *converging, object *unstructured.Unstructured) error {
			_, err := c.in(configMaps, c.namespace).Apply(c.Context(), object.GetName(), object,
				metav1.ApplyOptions{FieldManager: "before"})
			return err
		},
	} {
		for _, end := range []string{"removed", "desired"} {
			t.Run(name+" and "+end, func(t *testing.T) {
				t.Parallel()
				c := newConverging(t)
				c.noError(put(c, before.DeepCopy()))
				c.checkFieldFromBefore(end == "desired")
			})
		}
	}
}
