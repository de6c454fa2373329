package integration

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
)

// scale sets the replicas of the Deployment shop as an autoscaler does.
func (c *converging) scale(replicas int) {
	c.Helper()
	_, err := c.in(deployments, c.namespace).Patch(c.Context(), "shop", types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{FieldManager: "autoscaler"}, "scale")
	c.noError(err)
}

// checkReplicas fails unless the Deployment shop has the replicas.
func (c *converging) checkReplicas(when string, want int64) {
	c.Helper()
	got, _, _ := unstructured.NestedInt64(c.get(deployments, c.namespace, "shop").Object, "spec", "replicas")
	if got != want {
		c.Fatalf("%s: got %d replicas instead of %d", when, got, want)
	}
}

// shop returns the Deployment with replicas and an image. It has no replicas if they are 0.
func (c *converging) shop(replicas int64, image string) *unstructured.Unstructured {
	c.Helper()
	object := c.parse(shopDeployment)
	spec := object.Object["spec"].(map[string]any)
	if replicas > 0 {
		spec["replicas"] = replicas
	}
	template := spec["template"].(map[string]any)["spec"].(map[string]any)
	template["containers"].([]any)[0].(map[string]any)["image"] = image
	return object
}

// keeping reconciles a child that keeps fields, and returns the number of write requests.
func (c *converging) keeping(object *unstructured.Unstructured, paths ...string) (writes int64, err error) {
	c.Helper()
	child := children.Child{Object: object}
	for _, path := range paths {
		child.KeepExisting = append(child.KeepExisting, children.KeptField{Path: path, Reason: "tested"})
	}
	before := c.writes.Load()
	desired := children.Desired{Stages: [][]children.Child{{child}}}
	c.result, err = c.reconciler.Reconcile(c.Context(), c.id(c.parents, "p"), c.parent, desired)
	return c.writes.Load() - before, err
}

// Two clients set a field again and again. If the field then leaves the template, it keeps the value that the other
// client has set.
func TestHandlers_ContestedFieldIsHandedOver(t *testing.T) {
	t.Parallel()
	c := newConverging(t)
	c.settle(c.shop(3, "nginx"))
	for i := range 5 {
		c.scale(10 + i)
		_, err := c.reconcile(c.shop(3, "nginx"))
		c.noError(err)
	}
	c.checkReplicas("after the last correction", 3)
	c.settle(c.shop(0, "nginx"))
	c.checkReplicas("after the field has left the template", 14)
	c.settle(c.shop(0, "httpd"))
	c.scale(16)
	c.settle(c.shop(0, "nginx"))
	c.checkReplicas("after it was scaled", 16)
}

// The autoscaler is named, although its entry in managedFields has no time. A field that nobody contests is removed.
func TestHandlers_AutoscalerIsNamed(t *testing.T) {
	t.Parallel()
	c := newConverging(t)
	c.settle(c.shop(3, "nginx"))
	for i := range 6 {
		c.scale(10 + i)
		_, err := c.reconcile(c.shop(3, "nginx"))
		if _, requeued := dynamiccontroller.RequeueDelay(err); err != nil && !requeued {
			t.Fatal(err)
		}
	}
	drift := c.result.Children[0]
	if drift.Outcome != children.OutcomeDrifting || drift.Field != "spec.replicas" || drift.Manager != "autoscaler" {
		t.Errorf("the result is %+v", drift)
	}
	c.settle(c.shop(0, "nginx"))
	c.checkReplicas("after the field of the autoscaler has left the template", 15)

	c = newConverging(t)
	c.settle(c.shop(3, "nginx"))
	c.settle(c.shop(0, "nginx"))
	c.checkReplicas("after a field that nobody contests has left the template", 1)
}

// Fields that others may set are neither corrected nor removed, not even by a new leader, a change of the template, or
// when they leave the template.
func TestHandlers_KeptFields(t *testing.T) {
	t.Parallel()
	c := newConverging(t)
	const replicas, image = "spec.replicas", "spec.template.spec.containers[name=web].image"
	settle := func(when string, object *unstructured.Unstructured, want int64, paths ...string) {
		t.Helper()
		_, err := c.keeping(object, paths...)
		c.noError(err)
		if writes, err := c.keeping(object, paths...); err != nil || writes != 0 {
			t.Fatalf("%s: the second reconcile sent %d writes: %v", when, writes, err)
		}
		c.checkReplicas(when, want)
	}
	settle("created", c.shop(3, "nginx"), 3, replicas, image)
	settle("another value in the template", c.shop(5, "nginx"), 3, replicas, image)
	for i := range 8 {
		c.scale(10 + i)
		if writes, err := c.keeping(c.shop(3, "nginx"), replicas, image); err != nil || writes != 0 {
			t.Fatalf("scaled: %d writes, %v", writes, err)
		}
	}
	c.edit("updater", deployments, "shop", `[{"op": "replace", "path": "`+containers+`/0/image", "value": "new"},
		{"op": "replace", "path": "`+containers+`/0/env/0/value", "value": "drift"}]`)
	settle("another field was corrected", c.shop(3, "nginx"), 17, replicas, image)
	now := c.get(deployments, c.namespace, "shop")
	if got := namesAt(now, "image", containersPath...); got != "new" {
		t.Errorf("the image is %s", got)
	}
	if got := namesAt(now, "value", append(containersPath, "env")...); got != "1,2" {
		t.Errorf("the environment is %s", got)
	}
	c.reconciler = c.newReconciler(children.Config{})
	settle("a new leader, and a field that has left the template", c.shop(0, "nginx"), 17, replicas, image)
	settle("the rule has left as well", c.shop(0, "nginx"), 17)
	if got := namesAt(c.get(deployments, c.namespace, "shop"), "image", containersPath...); got != "nginx" {
		t.Errorf("without the rule, the image is %s", got)
	}
}

// oldCache serves one Secret in an old version, or not at all.
type oldCache struct {
	emptyCache
	old *unstructured.Unstructured
}

func (l *oldCache) Get(
	_ context.Context, gvr schema.GroupVersionResource, _, name string,
) (*unstructured.Unstructured, error) {
	if l.old == nil || gvr != secrets || l.old.GetName() != name {
		return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
	}
	return l.old.DeepCopy(), nil
}

// A value that is generated in each reconcile is stored once, although the cache is behind, the leader changes, and the
// rest of the Secret changes. A key that is missing is added.
func TestHandlers_GeneratedValues(t *testing.T) {
	t.Parallel()
	for name, paths := range map[string][]string{
		"a field": {"data.password"}, "all data": {"data"}, "the whole object": {children.WholeObject},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newConverging(t)
			c.moreKinds = append(c.moreKinds, children.Kind{GroupKind: schema.GroupKind{Kind: "Secret"}})
			cache := &oldCache{}
			secret := func(label string) *unstructured.Unstructured {
				object := newObject(secrets, "Secret", c.namespace, "db", nil)
				object.SetLabels(map[string]string{"l": label})
				object.Object["stringData"] = map[string]any{"password": rand.Text()}
				return object
			}
			newLeader := func() {
				c.reconciler = c.newReconciler(children.Config{Cache: cache})
			}
			reconcile := func(label string) *unstructured.Unstructured {
				_, err := c.keeping(secret(label), paths...)
				c.noError(err)
				return c.get(secrets, c.namespace, "db")
			}
			newLeader()
			first := reconcile("a")
			check := func(when string, now *unstructured.Unstructured) {
				if fmt.Sprint(now.Object["data"]) != fmt.Sprint(first.Object["data"]) {
					t.Fatalf("%s: the password has changed", when)
				}
				if now.GetLabels()["l"] != "b" {
					t.Errorf("%s: the labels are %v", when, now.GetLabels())
				}
			}
			check("the cache lacks the Secret", reconcile("b"))
			newLeader()
			check("the cache of a new leader lacks the Secret", reconcile("b"))
			c.merge(secrets, c.namespace, "db", `{"stringData": {"password": "rotated"}}`)
			rotated := c.get(secrets, c.namespace, "db")
			for _, old := range []*unstructured.Unstructured{first, rotated} {
				cache.old, first = old, rotated
				check("the cache has an old version", reconcile("b"))
				newLeader()
				check("the cache of a new leader has an old version", reconcile("b"))
			}
			cache.old = nil
			before := c.get(secrets, c.namespace, "db").GetResourceVersion()
			if now := reconcile("b"); now.GetResourceVersion() != before {
				t.Error("a new value has caused a write")
			}
			c.merge(secrets, c.namespace, "db", `{"data": null}`)
			if now := reconcile("b"); len(now.Object["data"].(map[string]any)) != 1 {
				t.Errorf("the missing value was not added: %v", now.Object["data"])
			}
		})
	}
}

// Paths that cannot be kept are errors of the desired child, and nothing is written.
func TestHandlers_KeptFieldsAreChecked(t *testing.T) {
	t.Parallel()
	c := newConverging(t)
	c.settle(newConfigMap(c.namespace, "page", "x"))
	for _, path := range []string{"", "data.", "metadata.name", "platform/x", "data[key]", "spec.list[name=x]"} {
		if writes, err := c.keeping(newConfigMap(c.namespace, "other", "x"), path); err == nil || writes != 0 {
			t.Errorf("%q: %d writes, %v", path, writes, err)
		}
	}
}
