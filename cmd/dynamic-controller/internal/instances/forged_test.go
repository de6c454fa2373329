package instances

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// addConfigMap adds a ConfigMap to the API server and the cache.
func (c *identityTest) addConfigMap(namespace, name string, change func(*unstructured.Unstructured)) {
	c.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
	object.SetNamespace(namespace)
	object.SetName(name)
	change(object)
	if err := c.server.Tracker().Add(object); err != nil {
		c.Fatal(err)
	}
	if err := c.engine.(*platformtest.Engine).Secondary.Add(object); err != nil {
		c.Fatal(err)
	}
}

// addForged adds an object that is marked as a child, in a namespace where the ServiceAccount cannot delete anything.
func (c *identityTest) addForged() {
	c.addConfigMap("theirs", "forged", func(object *unstructured.Unstructured) {
		object.SetLabels(map[string]string{parentLabel: string(c.self.GetUID())})
		object.SetAnnotations(map[string]string{
			selfAnnotation: "theirs/forged", stageAnnotation: "9", resourceAnnotation: "r0", instanceAnnotation: "shop/flowers",
		})
	})
	c.server.PrependReactor("delete", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.GetNamespace() == "theirs", nil, forbidden("delete")
	})
}

// A tenant in another namespace must not be able to block an instance.
func TestForgedChild_DoesNotBlockDeletion(t *testing.T) {
	c := newIdentityTest(t, place())
	if _, err := c.run(); err != nil {
		t.Fatal(err)
	}
	c.addForged()
	ready, err := c.run()
	if err != nil {
		t.Error(err)
	}
	c.wantCondition(ready, reasonReady)
	c.deleted()
	for range 2 {
		if _, err := c.run(); err != nil && !isRequeue(err) {
			t.Error(err)
		}
	}
	if slices.Contains(c.finalizers(), ChildrenFinalizer) {
		t.Errorf("got the finalizers %q", c.finalizers())
	}
	isDeleted := func(name string) bool { return slices.Contains(c.as.requests, "delete configmaps "+name) }
	if !isDeleted("r0") || isDeleted("forged") {
		t.Errorf("as the ServiceAccount: %q", c.as.requests)
	}
}

func TestForgedChild_OfExcludedResourceIsIgnored(t *testing.T) {
	b := granting(newTemplate("r0", "r0", nil))
	b.Spec.Resources[0].IncludeWhen = []string{"self.spec.admin"}
	b.Spec.Resources[0].Template["metadata"].(map[string]any)["namespace"] = "far"
	c := newIdentityTest(t, b)
	c.self.Object["spec"] = map[string]any{"admin": false, "held": false, "n": int64(1)}
	if err := c.server.Tracker().Update(websites, c.self, "shop"); err != nil {
		t.Fatal(err)
	}
	c.addForged()
	ready, err := c.run()
	if err != nil {
		t.Error(err)
	}
	c.wantCondition(ready, reasonReady)
}

// If the identity cannot read all objects of a type, the number of reads must not depend on the number of forged
// children.
func TestUnreadableChildren_LimitReads(t *testing.T) {
	const resources = 5
	c := newIdentityTest(t, chain(resources))
	if _, err := c.run(); err != nil {
		t.Fatal(err)
	}
	for i := range 20 * resources {
		name := "forged-" + string(rune('a'+i%26)) + strings.Repeat("x", i/26)
		c.addConfigMap("shop", name, func(object *unstructured.Unstructured) {
			object.SetAnnotations(map[string]string{resourceAnnotation: []string{"r0", "r1", "other"}[i%3]})
			object.SetFinalizers([]string{"example.com/x"})
			object.SetDeletionTimestamp(ptr.To(metav1.Now()))
			object.SetOwnerReferences([]metav1.OwnerReference{{UID: c.self.GetUID(), Controller: ptr.To(true)}})
		})
	}
	c.identities.unreadable, c.as.requests = true, nil
	if _, err := c.run(); err != nil && !isRequeue(err) {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, request := range c.as.requests {
		counts[request]++
	}
	for request, n := range counts {
		if n > 1 {
			t.Errorf("sent %d times: %s", n, request)
		}
	}
	if len(counts) > 2*resources {
		t.Errorf("as the ServiceAccount: %q", slices.Collect(maps.Keys(counts)))
	}
}

// The platform finds these children with its own permissions. Their names and finalizers must not be visible to the
// identity.
func TestUnreadableChildren_HiddenWhilePruning(t *testing.T) {
	for _, unreadable := range []bool{false, true} {
		c := newIdentityTest(t, chain(2))
		if _, err := c.run(); err != nil {
			t.Fatal(err)
		}
		child := childNamed(t, c.server, "r1").DeepCopy()
		child.SetFinalizers([]string{"example.com/x"})
		if err := c.engine.(*platformtest.Engine).Secondary.Update(child); err != nil {
			t.Fatal(err)
		}
		compiled, err := blueprint.Compile(chain(1), blueprint.Options{})
		if err != nil {
			t.Fatal(err)
		}
		c.Compiled, c.identities.unreadable = compiled, unreadable
		ready, err := c.run()
		if !isRequeue(err) {
			t.Errorf("got the error %v", err)
		}
		want := "r1: waiting for ConfigMap shop/r1 to be deleted; blocked by finalizer example.com/x"
		if unreadable {
			want = "waiting for a child of kind ConfigMap to be deleted"
		}
		if c.wantCondition(ready, reasonWaiting); ready.Message != want {
			t.Errorf("got  %s\nwant %s", ready.Message, want)
		}
	}
}

// If the platform cannot impersonate the ServiceAccount, the number of requests must not depend on the number of
// children.
func TestDeniedImpersonation_FailsFast(t *testing.T) {
	b := chain(0)
	for i := range 3 * children.DefaultMaxConcurrentApplies {
		b.Spec.Resources = append(b.Spec.Resources, newTemplate(fmt.Sprintf("r%d", i), fmt.Sprintf("r%d", i), nil))
	}
	c := newIdentityTest(t, b)
	c.deny("patch", denied())
	for range 2 {
		ready, err := c.run()
		c.wantCondition(ready, "PermissionMissing", "not permitted to impersonate")
		if !isRequeue(err) {
			t.Errorf("got the error %v", err)
		}
	}
	if sent := len(c.as.requests); sent == 0 || sent > children.DefaultMaxConcurrentApplies {
		t.Errorf("as the ServiceAccount: %q", c.as.requests)
	}
}

// The API server returns the same error for a missing status subresource as for a missing object.
func TestCleanupForbidden_RetriedWithoutStatusSubresource(t *testing.T) {
	for name, prepare := range map[string]func(c *identityTest){
		"the type is served": func(*identityTest) {},
		"only deletions are processed": func(c *identityTest) {
			c.Compiled, c.Spec.Type.CRD = nil, "websites.shop.example.com"
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newIdentityTest(t, place())
			if _, err := c.run(); err != nil {
				t.Fatal(err)
			}
			c.deleted()
			prepare(c)
			c.deny("delete", forbidden("delete"))
			c.server.PrependReactor("patch", "websites", func(action clienttesting.Action) (bool, runtime.Object, error) {
				err := apierrors.NewNotFound(websites.GroupResource(), flowers.Name())
				return action.GetSubresource() == "status", nil, err
			})
			_, err := c.run()
			if delay, again := dynamiccontroller.RequeueDelay(err); !again || delay != cleanupInterval {
				t.Errorf("got the error %v", err)
			}
		})
	}
}
