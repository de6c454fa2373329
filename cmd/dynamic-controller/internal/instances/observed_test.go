package instances

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// A user in another namespace can write an owner reference to an instance, and the annotation of one of its resources.
func TestObserve_IgnoresForgedChildrenInOtherNamespaces(t *testing.T) {
	k, server := newTestReconciler(t, chain(1))
	self := newFlowers(t, server)
	access, err := k.accessFor(t.Context(), self)
	if err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]bool{flowers.Namespace(): true, "elsewhere": false} {
		forged := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
		forged.SetNamespace(namespace)
		forged.SetName("forged")
		forged.SetUID("forged")
		forged.SetAnnotations(map[string]string{resourceAnnotation: "a"})
		forged.SetOwnerReferences([]metav1.OwnerReference{{UID: self.GetUID(), Name: self.GetName(),
			Controller: ptr.To(true)}})
		engine := k.engine.(*platformtest.Engine)
		if err := engine.Secondary.Add(forged); err != nil {
			t.Fatal(err)
		}
		if got := len(k.observe(t.Context(), self, access.reader).byKey) > 0; got != want {
			t.Errorf("namespace %s: canBeOwned = %t, want %t", namespace, got, want)
		}
		if err := engine.Secondary.Delete(forged); err != nil {
			t.Fatal(err)
		}
	}
}

// switching returns a Blueprint with a child that others wait for while spec.held is true, and a child that reads it.
// The status reads both.
func switching() *blueprint.Blueprint {
	base := newTemplate("base", "base", nil)
	base.ReadyWhen = []string{"!self.spec.held"}
	b := granting(base, newTemplate("page", "page", map[string]any{"data": map[string]any{"of": "${base.metadata.name}"}}))
	b.Spec.Type.Status = map[string]any{"base": "${base.metadata.name}", "page": "${page.data.of}"}
	return b
}

// hold sets spec.held, so that the page waits.
func (c *identityTest) hold(held bool) {
	c.Helper()
	object, err := c.server.Tracker().Get(websites, flowers.Namespace(), flowers.Name())
	if err != nil {
		c.Fatal(err)
	}
	next := object.(*unstructured.Unstructured).DeepCopy()
	next.Object["spec"] = map[string]any{"admin": false, "held": held, "n": int64(1)}
	if err := c.server.Tracker().Update(websites, next, flowers.Namespace()); err != nil {
		c.Fatal(err)
	}
}

// A failed read does not prove that a child is missing.
func TestObserved_KeepsStatusOfUnreadableChild(t *testing.T) {
	for name, test := range map[string]struct {
		child string
		held  bool
	}{
		"the child is rendered": {"base", false},
		"the child waits":       {"page", true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newIdentityTest(t, switching())
			c.hold(false)
			if _, err := c.run(); err != nil {
				t.Fatal(err)
			}
			before := statusFields(t, c.server)
			if fmt.Sprint(before) != "map[base:base page:base]" {
				t.Fatalf("got the status %v", before)
			}
			c.hold(test.held)
			c.identities.unreadable = true
			c.server.Fails("get", test.child, apierrors.NewServiceUnavailable("later"))
			ready, err := c.run()
			if !apierrors.IsServiceUnavailable(err) {
				t.Errorf("reconcile returned %v", err)
			}
			c.wantCondition(ready, reasonFailed, "later")
			if d := cmp.Diff(before, statusFields(t, c.server)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// When the cache syncs later, its events trigger another reconcile.
func TestObserved_KeepsStatusUntilCacheHasSynced(t *testing.T) {
	c := newIdentityTest(t, switching())
	c.hold(false)
	if _, err := c.run(); err != nil {
		t.Fatal(err)
	}
	before := statusFields(t, c.server)
	c.hold(true)
	c.engine.(*platformtest.Engine).SecondaryErr = dynamiccontroller.ErrNotSynced
	_, err := c.run()
	if delay, again := dynamiccontroller.RequeueDelay(err); !again || delay != unwatchedInterval {
		t.Errorf("got the error %v, want another reconcile", err)
	}
	if d := cmp.Diff(before, statusFields(t, c.server)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// The cache returns objects in random order.
func TestObserved_ForgedChildrenDoNotChangeStatus(t *testing.T) {
	for _, unreadable := range []bool{false, true} {
		c := newIdentityTest(t, switching())
		c.hold(false)
		if _, err := c.run(); err != nil {
			t.Fatal(err)
		}
		before := statusFields(t, c.server)
		c.hold(true)
		c.identities.unreadable = unreadable
		for _, name := range []string{"a", "z"} {
			c.addConfigMap("shop", name, func(object *unstructured.Unstructured) {
				object.SetUID(types.UID(name))
				object.SetLabels(map[string]string{parentLabel: string(c.self.GetUID())})
				object.SetAnnotations(map[string]string{resourceAnnotation: "page"})
				object.SetOwnerReferences([]metav1.OwnerReference{{UID: c.self.GetUID(), Controller: ptr.To(true)}})
				object.Object["data"] = map[string]any{"of": name}
			})
		}
		for range 20 {
			if _, err := c.run(); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(before, statusFields(t, c.server)); d != "" {
				t.Fatalf("unreadable %t: (-want +got):\n%s", unreadable, d)
			}
		}
	}
}
