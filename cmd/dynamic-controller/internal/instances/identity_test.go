package instances

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// fakeIdentities resolves all instances to the same identity.
type fakeIdentities struct {
	id         identity.Identity
	client     dynamic.Interface
	err        error // the error from Resolve
	unreadable bool
	reviewErr  error // the error from CanRead
	requests   []identity.Request
}

func (f *fakeIdentities) Resolve(_ context.Context, request identity.Request) (identity.Identity, error) {
	f.requests = append(f.requests, request)
	return f.id, f.err
}

func (f *fakeIdentities) Client(identity.Identity) (dynamic.Interface, error) { return f.client, nil }

func (f *fakeIdentities) CanRead(
	context.Context, identity.Identity, schema.GroupVersionResource, string,
) (bool, error) {
	return !f.unreadable, f.reviewErr
}

// applyChildren applies the children of an instance with the identity of the instance.
func applyChildren(t *testing.T, r *Reconciler, self *unstructured.Unstructured) (blueprint.Step, error) {
	t.Helper()
	access, err := r.accessFor(t.Context(), self)
	if err != nil {
		t.Fatal(err)
	}
	step, _, err := r.applyChildren(t.Context(), flowers, self, access)
	return step, err
}

// sameWrites reports whether the requests are the same, in any order: the children in a stage are applied concurrently.
func sameWrites(got, want []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want)))
}

var web = identity.Identity{Namespace: "shop", Name: "web"}

// recorder records the requests for children that are sent through it.
type recorder struct {
	dynamic.Interface

	mu       sync.Mutex // guards requests: children are applied concurrently
	requests []string
}

func (c *recorder) Resource(gvr schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return recordedResource{c.Interface.Resource(gvr), c, gvr}
}

type recordedResource struct {
	dynamic.NamespaceableResourceInterface
	client *recorder
	gvr    schema.GroupVersionResource
}

func (r recordedResource) Namespace(namespace string) dynamic.ResourceInterface {
	return recordedObjects{r.NamespaceableResourceInterface.Namespace(namespace), r}
}

type recordedObjects struct {
	dynamic.ResourceInterface
	resource recordedResource
}

func (o recordedObjects) record(verb, name string) {
	o.resource.client.mu.Lock()
	defer o.resource.client.mu.Unlock()
	o.resource.client.requests = append(o.resource.client.requests, verb+" "+o.resource.gvr.Resource+" "+name)
}

func (o recordedObjects) Get(ctx context.Context, name string, opts metav1.GetOptions, sub ...string) (
	*unstructured.Unstructured, error) {
	o.record("get", name)
	return o.ResourceInterface.Get(ctx, name, opts, sub...)
}

func (o recordedObjects) List(ctx context.Context, opts metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	o.record("list", "")
	return o.ResourceInterface.List(ctx, opts)
}

func (o recordedObjects) Apply(ctx context.Context, name string, object *unstructured.Unstructured,
	opts metav1.ApplyOptions, sub ...string) (*unstructured.Unstructured, error) {
	o.record("apply", name)
	return o.ResourceInterface.Apply(ctx, name, object, opts, sub...)
}

func (o recordedObjects) Delete(ctx context.Context, name string, opts metav1.DeleteOptions, sub ...string) error {
	o.record("delete", name)
	return o.ResourceInterface.Delete(ctx, name, opts, sub...)
}

// identityTest contains a Reconciler whose instances run as a ServiceAccount.
type identityTest struct {
	*testing.T
	*Reconciler
	server     *platformtest.Server
	identities *fakeIdentities
	as         *recorder // requests sent as the identity
	self       *unstructured.Unstructured
}

func newIdentityTest(t *testing.T, b *blueprint.Blueprint) *identityTest {
	t.Helper()
	r, server := newTestReconciler(t, b)
	c := &identityTest{T: t, Reconciler: r, server: server, as: &recorder{Interface: server}, self: newFlowers(t, server)}
	c.identities = &fakeIdentities{id: web, client: c.as}
	r.identities = c.identities
	r.Blueprint = b.Name
	r.Spec.ServiceAccountName = web.Name
	return c
}

// run reconciles the latest version of the instance and returns its Ready condition and the result.
func (c *identityTest) run() (*metav1.Condition, error) {
	c.Helper()
	object, err := c.server.Tracker().Get(websites, flowers.Namespace(), flowers.Name())
	if err != nil {
		c.Fatal(err)
	}
	result := c.reconcile(c.Context(), flowers, object.(*unstructured.Unstructured).DeepCopy())
	if object, err = c.server.Tracker().Get(websites, flowers.Namespace(), flowers.Name()); err != nil {
		return nil, result
	}
	return ConditionOf(object.(*unstructured.Unstructured), conditionReady), result
}

func (c *identityTest) wantCondition(got *metav1.Condition, reason string, words ...string) {
	c.Helper()
	if got == nil || got.Reason != reason {
		c.Fatalf("the condition is %+v, want %s", got, reason)
	}
	for _, word := range words {
		if !strings.Contains(got.Message, word) {
			c.Errorf("got the message %q, want %q", got.Message, word)
		}
	}
}

func (c *identityTest) deny(verb string, err error) {
	c.server.PrependReactor(verb, "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, err
	})
}

func forbidden(verb string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "r0",
		errors.New(`User "system:serviceaccount:shop:web" cannot `+verb+` resource "configmaps"`))
}

// denied is the API server's response if the platform cannot impersonate the ServiceAccount.
func denied() error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, "web",
		errors.New(`User "platform" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "shop"`))
}

// place moves a ConfigMap to another namespace, so that the platform has to delete it.
func place() *blueprint.Blueprint {
	b := chain(1)
	b.Spec.Resources[0].Template["metadata"].(map[string]any)["namespace"] = "far"
	return b
}

func TestIdentity_AppliesChildren(t *testing.T) {
	c := newIdentityTest(t, chain(1))
	ready, err := c.run()
	if err != nil {
		t.Fatal(err)
	}
	c.wantCondition(ready, reasonReady)
	want := identity.Request{Blueprint: "websites", ServiceAccountName: "web", Namespace: "shop"}
	if !slices.Equal(c.identities.requests, []identity.Request{want}) {
		t.Errorf("resolved %+v, want %+v", c.identities.requests, want)
	}
	if !slices.Equal(c.as.requests, []string{"apply configmaps r0"}) {
		t.Errorf("as the ServiceAccount: %q", c.as.requests)
	}
}

func TestIdentity_ChangeAppliesChildrenAgain(t *testing.T) {
	c := newIdentityTest(t, chain(1))
	if _, err := c.run(); err != nil {
		t.Fatal(err)
	}
	for _, change := range []struct {
		id   identity.Identity
		want []string
	}{
		{web, nil},
		{identity.Identity{Namespace: "shop", Name: "other"}, []string{"apply configmaps r0"}},
	} {
		c.identities.id, c.as.requests = change.id, nil
		if _, err := c.run(); err != nil || !slices.Equal(c.as.requests, change.want) {
			t.Errorf("as %s: %q, %v, want %q", change.id, c.as.requests, err, change.want)
		}
	}
}

func TestIdentity_RejectionIsRetriedLessOftenOverTime(t *testing.T) {
	rejection := &identity.Rejection{Reason: identity.ReasonConsentMissing}
	for status, delays := range map[string]map[time.Duration]time.Duration{
		"False": {
			0: minIdentityInterval, 80 * time.Second: 10 * time.Second, time.Hour: maxIdentityInterval,
			-time.Hour: minIdentityInterval,
		},
		"True": {time.Hour: minIdentityInterval},
	} {
		for age, want := range delays {
			condition := map[string]any{
				"type": conditionReady, "status": status, "lastTransitionTime": time.Now().Add(-age).Format(time.RFC3339),
			}
			self := &unstructured.Unstructured{Object: map[string]any{
				"status": map[string]any{"conditions": []any{condition}},
			}}
			got, again := dynamiccontroller.RequeueDelay(retryRejected(self, rejection))
			if !again || (got-want).Abs() > time.Second {
				t.Errorf("after %s without being ready: got %s, want %s", age, got, want)
			}
		}
	}
}

func TestIdentity_RejectionIsRetriedAndDoesNotCountAsFailure(t *testing.T) {
	c := newIdentityTest(t, chain(1))
	c.identities.err = &identity.Rejection{
		Reason: identity.ReasonConsentMissing, Message: "does not allow Blueprint websites",
	}
	ready, err := c.run()
	c.wantCondition(ready, identity.ReasonConsentMissing, "does not allow Blueprint websites")
	if delay, again := dynamiccontroller.RequeueDelay(err); !again || delay != minIdentityInterval {
		t.Errorf("got the error %v", err)
	}
	if len(c.as.requests) > 0 {
		t.Errorf("as the ServiceAccount: %q", c.as.requests)
	}
	if !isFailing(ready.Reason) {
		t.Error("the instance does not count as failing")
	}
	c.identities.err = nil
	if ready, err = c.run(); err != nil {
		t.Fatal(err)
	}
	c.wantCondition(ready, reasonReady)
}

func TestIdentity_TemporaryErrorIsAFailure(t *testing.T) {
	c := newIdentityTest(t, chain(1))
	c.identities.err = errors.New("no answer")
	ready, err := c.run()
	c.wantCondition(ready, reasonFailed, "no answer")
	if !errors.Is(err, c.identities.err) || isRequeue(err) {
		t.Errorf("got the error %v", err)
	}
}

func TestIdentity_TemporaryErrorOfADeletedInstance(t *testing.T) {
	c := newIdentityTest(t, chain(1))
	c.identities.err = errors.New("no answer")
	object, err := c.server.Tracker().Get(websites, flowers.Namespace(), flowers.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.server.Tracker().Delete(websites, flowers.Namespace(), flowers.Name()); err != nil {
		t.Fatal(err)
	}
	if err := c.reconcile(t.Context(), flowers, object.(*unstructured.Unstructured)); err != nil {
		t.Errorf("got the error %v", err)
	}
}

func TestIdentity_ForbiddenReadIsReported(t *testing.T) {
	c := newIdentityTest(t, chain(1))
	if _, err := c.run(); err != nil {
		t.Fatal(err)
	}
	c.identities.unreadable = true
	c.deny("get", forbidden("get"))
	ready, err := c.run()
	c.wantCondition(ready, reasonForbidden, "as ServiceAccount shop/web: ", "cannot get")
	if err == nil || isRequeue(err) {
		t.Errorf("got the error %v", err)
	}
}

func TestIdentity_ForbiddenNamesTheServiceAccount(t *testing.T) {
	c := newIdentityTest(t, chain(1))
	c.deny("patch", forbidden("patch"))
	ready, err := c.run()
	c.wantCondition(ready, reasonForbidden, "r0: ConfigMap shop/r0: apply: as ServiceAccount shop/web: ", "cannot patch")
	if strings.Contains(ready.Message, "flowers") {
		t.Errorf("the message names the instance: %s", ready.Message)
	}
	if err == nil || isRequeue(err) {
		t.Errorf("got the error %v", err)
	}
}

// A Secret's message is redacted, but the response to a denied impersonation does not come from the Secret.
func TestIdentity_DeniedImpersonationIsPermissionMissing(t *testing.T) {
	b := chain(1)
	b.Spec.Resources[0].Template["kind"] = "Secret"
	c := newIdentityTest(t, b)
	c.server.PrependReactor("patch", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, denied()
	})
	ready, err := c.run()
	c.wantCondition(ready, identity.ReasonPermissionMissing, identity.ImpersonationRejection(web).Message)
	if !isRequeue(err) {
		t.Errorf("got the error %v", err)
	}
}

func TestIdentity_UnreadableCachedChildrenAreReadAsIdentity(t *testing.T) {
	for name, prepare := range map[string]func(*fakeIdentities){
		"the review denies it": func(f *fakeIdentities) { f.unreadable = true },
		"the review fails":     func(f *fakeIdentities) { f.reviewErr = errors.New("no answer") },
	} {
		t.Run(name, func(t *testing.T) {
			c := newIdentityTest(t, chain(2))
			if _, err := c.run(); err != nil {
				t.Fatal(err)
			}
			prepare(c.identities)
			c.as.requests = nil
			ready, err := c.run()
			if err != nil {
				t.Fatal(err)
			}
			c.wantCondition(ready, reasonReady)
			if !slices.Contains(c.as.requests, "get configmaps r0") || !slices.Contains(c.as.requests, "get configmaps r1") {
				t.Errorf("as the ServiceAccount: %q", c.as.requests)
			}
			// r1 contains an expression that reads r0.
			c.deny("get", forbidden("get"))
			ready, _ = c.run()
			c.wantCondition(ready, reasonForbidden, "as ServiceAccount shop/web: ", "cannot get")
			access, err := c.accessFor(t.Context(), c.self)
			if err != nil {
				t.Fatal(err)
			}
			if observed := c.observe(t.Context(), c.self, access.reader); len(observed.byKey) > 0 {
				t.Errorf("expressions read %v", observed.byKey)
			}
		})
	}
}

// deleted marks the instance as being deleted and keeps its finalizers.
func (c *identityTest) deleted(finalizers ...string) {
	c.Helper()
	object, err := c.server.Tracker().Get(websites, flowers.Namespace(), flowers.Name())
	if err != nil {
		c.Fatal(err)
	}
	self, now := object.(*unstructured.Unstructured).DeepCopy(), metav1.Now()
	self.SetDeletionTimestamp(&now)
	self.SetFinalizers(slices.Concat(self.GetFinalizers(), finalizers, []string{"example.com/hold"}))
	if err := c.server.Tracker().Update(websites, self, flowers.Namespace()); err != nil {
		c.Fatal(err)
	}
}

// A child that must be kept is released as the ServiceAccount as well.
func TestIdentity_ForbiddenReleaseKeepsTheFinalizer(t *testing.T) {
	c := newIdentityTest(t, place())
	if _, err := c.run(); err != nil {
		t.Fatal(err)
	}
	c.deleted(metav1.FinalizerOrphanDependents)
	c.deny("patch", forbidden("patch"))
	ready, _ := c.run()
	c.wantCondition(ready, reasonCleanupForbidden, "cannot release configmaps far/r0: ", "cannot patch resource")
}

func (c *identityTest) finalizers() []string {
	c.Helper()
	object, err := c.server.Tracker().Get(websites, flowers.Namespace(), flowers.Name())
	if err != nil {
		c.Fatal(err)
	}
	return object.(*unstructured.Unstructured).GetFinalizers()
}

func TestIdentity_CleanupForbiddenKeepsTheFinalizer(t *testing.T) {
	rejection := &identity.Rejection{
		Reason: identity.ReasonServiceAccountNotFound, Message: "ServiceAccount shop/web: not found",
	}
	for name, test := range map[string]struct {
		prepare func(c *identityTest)
		cause   string
	}{
		"the ServiceAccount is gone": {func(c *identityTest) { c.identities.err = rejection }, rejection.Message},
		"the RoleBinding is gone": {
			func(c *identityTest) { c.deny("delete", forbidden("delete")) }, "cannot delete resource",
		},
		"the impersonation is denied": {
			func(c *identityTest) { c.deny("delete", denied()) }, "not permitted to impersonate",
		},
		"only deletions are processed": {
			func(c *identityTest) {
				c.Compiled = nil
				c.identities.err = rejection
			}, rejection.Message,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newIdentityTest(t, place())
			if _, err := c.run(); err != nil {
				t.Fatal(err)
			}
			c.deleted()
			test.prepare(c)
			ready, err := c.run()
			c.wantCondition(ready, reasonCleanupForbidden, "cannot delete configmaps far/r0: ", test.cause,
				"kubectl patch websites.shop.example.com flowers -n shop --type=merge",
				`-p '{"metadata":{"finalizers":["example.com/hold"]}}'`)
			if delay, again := dynamiccontroller.RequeueDelay(err); !again || delay != cleanupInterval {
				t.Errorf("got the error %v", err)
			}
			if !slices.Contains(c.finalizers(), ChildrenFinalizer) {
				t.Errorf("got the finalizers %q", c.finalizers())
			}
		})
	}
}

func TestIdentity_RejectedIdentityReleasesInstanceWithoutRemoteChildren(t *testing.T) {
	c := newIdentityTest(t, place())
	if _, err := c.run(); err != nil {
		t.Fatal(err)
	}
	c.deleted()
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	if err := c.server.Tracker().Delete(configMaps, "far", "r0"); err != nil {
		t.Fatal(err)
	}
	c.identities.err = &identity.Rejection{Reason: identity.ReasonServiceAccountNotFound, Message: "not found"}
	if _, err := c.run(); err != nil && !isRequeue(err) {
		t.Fatal(err)
	}
	if slices.Contains(c.finalizers(), ChildrenFinalizer) {
		t.Errorf("got the finalizers %q", c.finalizers())
	}
}

// The platform lists children to find those to delete. It deletes them as the ServiceAccount.
func TestIdentity_CleanupListsAsThePlatform(t *testing.T) {
	c := newIdentityTest(t, place())
	if _, err := c.run(); err != nil {
		t.Fatal(err)
	}
	c.deleted()
	c.as.requests = nil
	if _, err := c.run(); !isRequeue(err) {
		t.Fatal(err)
	}
	// The ConfigMap shows whether the children must be kept.
	if !slices.Equal(c.as.requests, []string{"get configmaps children-of-flowers-1017ff7e", "delete configmaps r0"}) {
		t.Errorf("as the ServiceAccount: %q", c.as.requests)
	}
}
