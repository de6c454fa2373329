package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
)

// newFight returns a setting with more kinds of children.
func newFight(t *testing.T, kinds ...schema.GroupKind) *converging {
	c := newConverging(t)
	for _, kind := range kinds {
		c.moreKinds = append(c.moreKinds, children.Kind{GroupKind: kind})
	}
	c.reconciler = c.newReconciler(children.Config{Client: must(dynamic.NewForConfig(c.writes.wrap(c.config)))})
	return c
}

// checkFight fights against the child several times, and fails if the writes are not limited. It returns the last
// result that says so. burst and period are those of the budget.
func (c *converging) checkFight(
	child *unstructured.Unstructured, undo func(), rounds int, burst int64, period time.Duration,
) (result children.ChildResult) {
	c.Helper()
	began, fought := time.Now(), int64(0)
	for range rounds {
		undo()
		writes, err := c.reconcile(child)
		fought += writes
		if _, requeued := dynamiccontroller.RequeueDelay(err); err != nil && !requeued {
			c.Fatal(err)
		}
		if c.result.Children[0].Outcome == children.OutcomeDrifting {
			result = c.result.Children[0]
		}
	}
	if most := burst + int64(time.Since(began)/period) + 1; fought > most {
		c.Fatalf("got %d writes in %d rounds, but at most %d are allowed", fought, rounds, most)
	}
	return result
}

// A child that is deleted whenever it exists is created at once a few times, and then slowly. Its result says so, even
// while the child exists.
func TestHandlers_DeletedAgainAndAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		gvr           schema.GroupVersionResource
		child, advice string
	}{
		"a ConfigMap": {configMaps, `{apiVersion: v1, kind: ConfigMap, metadata: {name: once}}`, "stop the client"},
		"a Job that is deleted when it has finished": {jobs, `{apiVersion: batch/v1, kind: Job, metadata: {name: once},
			spec: {ttlSecondsAfterFinished: 0, template: {spec: {restartPolicy: Never,
			containers: [{name: c, image: i}]}}}}`, "remove spec.ttlSecondsAfterFinished"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newFight(t, schema.GroupKind{Group: "batch", Kind: "Job"})
			child := c.parse(test.child)
			c.settle(child)
			remove := func() {
				err := c.in(test.gvr, c.namespace).Delete(c.Context(), "once", metav1.DeleteOptions{
					PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
				})
				if err != nil && !apierrors.IsNotFound(err) {
					t.Fatal(err)
				}
			}
			result := c.checkFight(child, remove, 30, 5, 10*time.Second)
			if result.Reason != children.ReasonDeletedByOthers || !strings.Contains(result.Message, test.advice) ||
				result.Object != nil {
				t.Errorf("the result is %+v", result)
			}
			c.eventually("it is created again, and still reported", func() error {
				_, err := c.reconcile(child)
				if result := c.result.Children[0]; result.Object == nil || result.Outcome != children.OutcomeDrifting {
					return fmt.Errorf("the result is %+v: %w", result, err)
				}
				return nil
			})
			c.settle(child)
		})
	}
}

// A child that the controller itself deletes and creates again, because its desired state changes, is neither delayed
// nor reported, although Kubernetes would delete it as well when it has finished.
func TestHandlers_OwnDeletionsAreNoFight(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(c *converging, child *unstructured.Unstructured){
		"a child that is pruned": func(c *converging, _ *unstructured.Unstructured) {
			_, err := c.reconcile(newConfigMap(c.namespace, "other", "x"))
			if _, requeued := dynamiccontroller.RequeueDelay(err); err != nil && !requeued { // the child is being deleted
				c.Fatal(err)
			}
		},
		"a child that is recreated": func(c *converging, child *unstructured.Unstructured) {
			c.noError(unstructured.SetNestedField(child.Object, "y", "spec", "template", "metadata", "labels", "immutable"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newFight(t, schema.GroupKind{Group: "batch", Kind: "Job"})
			c.immutable = children.OnImmutableRecreate
			child := c.parse(`{apiVersion: batch/v1, kind: Job, metadata: {name: page}, spec: {ttlSecondsAfterFinished: 600,
				template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}`)
			c.settle(child)
			former := c.get(jobs, c.namespace, "page").GetUID()
			remove(c, child)
			c.eventually("the child is created again", func() error {
				_, err := c.reconcile(child)
				if result := c.result.Children[0]; result.Outcome == children.OutcomeDrifting {
					t.Fatalf("the result is %+v", result)
				}
				return err
			})
			if c.get(jobs, c.namespace, "page").GetUID() == former {
				t.Error("the child was not created again")
			}
		})
	}
}

// The metadata that makes an object a child, and permissions, are corrected more often, but not without a limit.
func TestHandlers_ProtectionsAreLimited(t *testing.T) {
	t.Parallel()
	roles := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}
	for name, test := range map[string]struct {
		gvr           schema.GroupVersionResource
		child, strip  string
		field, exists string
	}{
		"owner references": {configMaps, `{apiVersion: v1, kind: ConfigMap, metadata: {name: page}, data: {key: x}}`,
			`[{"op": "remove", "path": "/metadata/ownerReferences"}]`, "metadata.ownerReferences", "ownerReferences"},
		"labels": {configMaps, `{apiVersion: v1, kind: ConfigMap, metadata: {name: page}, data: {key: x}}`,
			`[{"op": "remove", "path": "/metadata/labels"}]`, "metadata.labels", "labels"},
		"permissions": {roles, `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: page},
			rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]}`,
			`[{"op": "replace", "path": "/rules/0/verbs", "value": ["*"]}]`, "rules", "labels"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newConverging(t)
			child := c.parse(test.child)
			c.settle(child)
			strip := func() {
				metadata := c.get(test.gvr, c.namespace, "page").Object["metadata"].(map[string]any)
				if metadata[test.exists] != nil {
					c.edit("fighter", test.gvr, "page", test.strip)
				}
			}
			result := c.checkFight(child, strip, 120, 50, time.Second)
			if result.Reason != children.ReasonChangedByOthers || !strings.HasPrefix(result.Field, test.field) {
				t.Errorf("the result is %+v", result)
			}
			c.eventually("the last change is corrected", func() error {
				_, err := c.reconcile(child)
				return err
			})
			c.settle(child)
		})
	}
}

// Another client adds metadata that Reconcile removes: the confirmation of a restore, which has been evaluated, and the
// owner reference of a retained child, with which Kubernetes would delete the child.
func TestHandlers_RemovalsOfMetadataAreLimited(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		retain bool
		field  string
		added  func(c *converging) (metadata map[string]any)
	}{
		"the confirmation of a restore": {false, "metadata.annotations", func(c *converging) map[string]any {
			return map[string]any{"annotations": map[string]any{platformName + "/restored": string(c.parent.GetUID())}}
		}},
		"the owner reference of a retained child": {true, "metadata.ownerReferences", func(c *converging) map[string]any {
			return map[string]any{"ownerReferences": []any{map[string]any{
				"apiVersion": c.parent.GetAPIVersion(), "kind": c.parent.GetKind(), "name": c.parent.GetName(),
				"uid": string(c.parent.GetUID()),
			}}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newConverging(t)
			c.retain = test.retain
			child := c.parse(`{apiVersion: v1, kind: ConfigMap, metadata: {name: page}, data: {key: x}}`)
			c.settle(child)
			added := must(json.Marshal(map[string]any{"metadata": test.added(c)}))
			writes := int64(1) // of a correction
			if test.retain {
				writes = 2 // the child is also applied
			}
			add := func() { c.merge(configMaps, c.namespace, "page", string(added)) }
			result := c.checkFight(child, add, 120, 50*writes, time.Second/time.Duration(writes))
			if result.Reason != children.ReasonChangedByOthers || result.Field != test.field {
				t.Errorf("the result is %+v", result)
			}
			c.eventually("the last change is corrected", func() error {
				_, err := c.reconcile(child)
				return err
			})
			c.settle(child)
		})
	}
}
