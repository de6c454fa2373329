package instances

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// referTo is a resource that refers to existing ConfigMaps.
func referTo(id string, metadata blueprint.ExternalRefMetadata) blueprint.Resource {
	return blueprint.Resource{ID: id, ExternalRef: &blueprint.ExternalRef{
		APIVersion: "v1", Kind: "ConfigMap", Metadata: metadata,
	}}
}

// sharing returns a Blueprint with one child that copies the text of an existing object, and another that does not.
func sharing() *blueprint.Blueprint {
	return granting(
		referTo("settings", blueprint.ExternalRefMetadata{Name: "shared"}),
		newTemplate("copy", "copy", map[string]any{"data": map[string]any{"text": "${settings.data.text}"}}),
		newTemplate("other", "other", nil),
	)
}

// put creates or replaces a ConfigMap in the namespace of the instance.
func put(t *testing.T, server *platformtest.Server, name string, data, labels map[string]string) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
	object.SetNamespace("shop")
	object.SetName(name)
	object.SetLabels(labels)
	if err := unstructured.SetNestedStringMap(object.Object, data, "data"); err != nil {
		t.Fatal(err)
	}
	_ = server.Tracker().Delete(configMaps, "shop", name)
	if err := server.Tracker().Create(configMaps, object, "shop"); err != nil {
		t.Fatal(err)
	}
}

// reads returns the read requests for objects that are not children.
func (c *identityTest) reads() (reads []string) {
	for _, request := range c.as.requests {
		if strings.HasPrefix(request, "list") || strings.HasSuffix(request, " shared") {
			reads = append(reads, request)
		}
	}
	c.as.requests = nil
	return reads
}

func (c *identityTest) ready() metav1.Condition {
	c.Helper()
	return conditionOf(c.T, c.server, conditionReady)
}

func TestReferences_AreReadOncePerReconcile(t *testing.T) {
	c := newIdentityTest(t, sharing())
	put(t, c.server, "shared", map[string]string{"text": "roses"}, nil)
	for range 2 { // the first reconcile takes several steps
		if err := c.reconcile(t.Context(), flowers, c.self.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		if got := c.reads(); !slices.Equal(got, []string{"get configmaps shared"}) {
			t.Errorf("read %q", got)
		}
	}
	if text, _, _ := unstructured.NestedString(childNamed(t, c.server, "copy").Object, "data", "text"); text != "roses" {
		t.Errorf("copied %q", text)
	}
	if ready := c.ready(); ready.Message != "all 3 resources are ready" {
		t.Errorf("got %+v", ready)
	}
}

// Until an instance is deleted, the index contains the objects that it refers to, even if they cannot be read.
func TestReferences_AreIndexed(t *testing.T) {
	c := newIdentityTest(t, sharing())
	shared := metadataObject{meta: metav1.ObjectMeta{Namespace: "shop", Name: "shared"}}
	expect := func(name string, want int) {
		t.Helper()
		if got := c.referrers.of(configMaps, shared); len(got) != want {
			t.Errorf("%s: got %q", name, got)
		}
	}
	c.server.PrependReactor("get", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.GetAction).GetName() == "shared" {
			expect("before the read", 1)
		}
		return false, nil, nil
	})
	if err := c.reconcile(t.Context(), flowers, c.self.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	expect("of an object that does not exist", 1)
	if ready := c.ready(); ready.Reason != reasonWaiting ||
		!strings.Contains(ready.Message, "settings: ConfigMap shop/shared does not exist; copy: waiting for settings") {
		t.Errorf("got %+v", ready)
	}
	if writes := c.server.Took(); !slices.Contains(writes, "patch configmaps other") {
		t.Errorf("written: %q", writes)
	}
	if err := c.gone(t.Context(), flowers); err != nil {
		t.Fatal(err)
	}
	expect("after the instance was deleted", 0)
}

func TestReferences_Unreadable(t *testing.T) {
	forbidden := apierrors.NewForbidden(configMaps.GroupResource(), "shared",
		errors.New(`User "web" cannot get resource "configmaps"`))
	for name, test := range map[string]struct {
		err    error
		reason string
		want   []string // expected in the message
		fails  bool     // whether the reconcile is retried
	}{
		"Forbidden": {forbidden, reasonForbidden, []string{"settings: as ServiceAccount shop/web: ", "cannot get resource"},
			true},
		"unavailable": {apierrors.NewServiceUnavailable("later"), reasonFailed, []string{"settings: ", "later"}, true},
		"too large": {fmt.Errorf("read it: %w", identity.ErrResponseTooLarge), reasonInvalid,
			[]string{"spec.resources[0].externalRef: ", "more than 4194304 bytes"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newIdentityTest(t, sharing())
			c.server.Fails("get", "shared", test.err)
			err := c.reconcile(t.Context(), flowers, c.self.DeepCopy())
			if (err != nil) != test.fails {
				t.Errorf("reconcile returned %v", err)
			}
			ready := c.ready()
			if ready.Reason != test.reason {
				t.Errorf("got %+v", ready)
			}
			for _, want := range test.want {
				if !strings.Contains(ready.Message, want) {
					t.Errorf("got %q, want %q", ready.Message, want)
				}
			}
			if writes := c.server.Took(); !slices.Contains(writes, "patch configmaps other") {
				t.Errorf("written: %q", writes)
			}
		})
	}
}

// A child that depends on itself would change endlessly.
func TestReferences_DoNotIncludeChildren(t *testing.T) {
	b := granting(newTemplate("base", "shared", nil), referTo("settings", blueprint.ExternalRefMetadata{Name: "shared"}))
	c := newIdentityTest(t, b)
	for range 2 {
		_ = c.reconcile(t.Context(), flowers, c.self.DeepCopy())
	}
	if ready := c.ready(); ready.Reason != reasonInvalid || !strings.Contains(ready.Message,
		"spec.resources[1].externalRef: ConfigMap shop/shared is a child of the instance") {
		t.Errorf("got %+v", ready)
	}
	b = granting(
		referTo("found", blueprint.ExternalRefMetadata{Selector: &metav1.LabelSelector{}}),
		newTemplate("names", "names", map[string]any{"data": map[string]any{
			"a": "${found.map(o, o.metadata.name).join(',')}",
		}}),
	)
	c = newIdentityTest(t, b)
	for _, name := range []string{"z", "shared", "a"} {
		put(t, c.server, name, nil, nil)
	}
	for range 2 {
		if err := c.reconcile(t.Context(), flowers, c.self.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		if got, _, _ := unstructured.NestedString(childNamed(t, c.server, "names").Object, "data", "a"); got != "a,shared,z" {
			t.Errorf("listed %q", got)
		}
	}
}

func TestReferences_LimitList(t *testing.T) {
	c := newIdentityTest(t, granting(referTo("found", blueprint.ExternalRefMetadata{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"color": "red"}},
	})))
	for i := range blueprint.MaxReferenced + 1 {
		put(t, c.server, fmt.Sprint("red-", i), nil, map[string]string{"color": "red"})
		put(t, c.server, fmt.Sprint("blue-", i), nil, map[string]string{"color": "blue"})
	}
	put(t, c.server, "own", nil, map[string]string{"color": "red", parentLabel: string(c.self.GetUID())})
	for _, want := range []string{"more than 500 objects match the selector", "the resource is ready"} {
		if err := c.reconcile(t.Context(), flowers, c.self.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		if got := c.reads(); !slices.Equal(got, []string{"list configmaps "}) {
			t.Errorf("read %q", got)
		}
		if ready := c.ready(); !strings.Contains(ready.Message, want) {
			t.Errorf("got %+v, want %q", ready, want)
		}
		_ = c.server.Tracker().Delete(configMaps, "shop", "red-0")
	}
}

// switched returns a Blueprint with a child that exists while the mode of an existing object is "on", and another child
// that depends on it.
func switched() *blueprint.Blueprint {
	grant := newTemplate("grant", "grant", nil)
	grant.IncludeWhen = []string{"settings.data.mode == 'on'"}
	return granting(
		referTo("settings", blueprint.ExternalRefMetadata{Name: "shared"}), grant,
		newTemplate("dependent", "dependent", map[string]any{"data": map[string]any{"a": "${grant.metadata.name}"}}),
		newTemplate("other", "other", nil), broken(),
	)
}

func TestReferences_InIncludeWhen(t *testing.T) {
	c := newIdentityTest(t, switched())
	reconcile := func(n int64) (writes []string) {
		t.Helper()
		c.self.Object["spec"] = map[string]any{"n": n}
		if err := c.reconcile(t.Context(), flowers, c.self); err != nil && !isRequeue(err) {
			t.Fatal(err)
		}
		return slices.DeleteFunc(c.server.Took(), func(write string) bool { return strings.Contains(write, "websites") })
	}
	mode := func(mode string) { put(t, c.server, "shared", map[string]string{"mode": mode}, nil) }

	if writes := reconcile(1); !sameWrites(writes, []string{"patch configmaps other", "patch configmaps broken"}) {
		t.Errorf("without the object, written: %q", writes)
	}
	mode("off")
	if writes := reconcile(1); len(writes) > 0 || c.ready().Status != metav1.ConditionTrue {
		t.Errorf("off, written: %q, %+v", writes, c.ready())
	}
	mode("on")
	if writes := reconcile(1); !slices.Equal(writes, []string{"patch configmaps grant", "patch configmaps dependent"}) {
		t.Errorf("on, written: %q", writes)
	}
	// While the platform cannot tell whether the child is wanted, it keeps the child and prunes nothing.
	_ = c.server.Tracker().Delete(configMaps, "shop", "shared")
	if writes := reconcile(1); len(writes) > 0 || c.ready().Reason != reasonWaiting {
		t.Errorf("without the object again, written: %q, %+v", writes, c.ready())
	}
	// The child is deleted after its dependents, even if another resource cannot be rendered.
	mode("off")
	if writes := reconcile(0); !slices.Equal(writes, []string{"delete configmaps dependent"}) &&
		!slices.Equal(writes, []string{"delete configmaps dependent", "delete configmaps grant"}) {
		t.Errorf("off again, written: %q", writes)
	}
}

// The state of one child decides whether another is wanted, in a later step of the same reconcile or when the first
// child changes.
func TestIncludeWhen_ReadsChild(t *testing.T) {
	grant := newTemplate("grant", "grant", nil)
	grant.IncludeWhen = []string{"base.data.admin == 'true'"}
	k, server := newTestReconciler(t, granting(
		newTemplate("base", "base", map[string]any{"data": map[string]any{"admin": "${string(self.spec.admin)}"}}), grant,
	))
	self := newFlowers(t, server)
	for _, test := range []struct {
		admin  bool
		writes []string
	}{
		{true, []string{"patch configmaps base", "patch configmaps grant"}},
		{false, []string{"patch configmaps base", "delete configmaps grant"}},
		{true, []string{"patch configmaps base", "patch configmaps grant"}},
	} {
		self.Object["spec"] = map[string]any{"admin": test.admin}
		before := len(server.Writes) // Took would reset the resourceVersions
		step, err := applyChildren(t, k, self)
		if err != nil || !step.Ready {
			t.Fatalf("got %+v, %v", step, err)
		}
		writes := slices.DeleteFunc(slices.Clone(server.Writes[before:]),
			func(write string) bool { return strings.Contains(write, "websites") })
		if !slices.Equal(writes, test.writes) {
			t.Errorf("admin %t: written: %q, want %q", test.admin, writes, test.writes)
		}
		if !test.admin { // update the cache
			cached := &unstructured.Unstructured{}
			cached.SetNamespace("shop")
			cached.SetName("grant")
			_ = k.engine.(*platformtest.Engine).Secondary.Delete(cached)
		}
	}
}

// A collection follows the objects that match a selector. If they cannot be read, its objects and the status of the
// instance do not change.
func TestReferences_OfCollectionsAndStatus(t *testing.T) {
	copies := newTemplate("copies", "copy-${member.metadata.name}", nil)
	copies.ForEach = []map[string]string{{"member": "${found}"}}
	copies.IncludeWhen = []string{"settings.data.mode == 'on'"}
	b := granting(
		referTo("settings", blueprint.ExternalRefMetadata{Name: "shared"}),
		referTo("found", blueprint.ExternalRefMetadata{Selector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"color": "red"},
		}}), copies,
	)
	b.Spec.Type.Status = map[string]any{"mode": "${settings.data.mode}", "found": "${size(found)}"}
	c := newIdentityTest(t, b)
	fromCache(c.Reconciler, c.server)
	red := map[string]string{"color": "red"}
	unavailable, fails := apierrors.NewServiceUnavailable("later"), false
	c.server.PrependReactor("get", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return fails && action.(clienttesting.GetAction).GetName() == "shared", nil, unavailable
	})
	for _, step := range []struct {
		name    string
		change  func()
		writes  []string
		message string
		status  string
	}{
		{"no objects", func() { put(t, c.server, "shared", map[string]string{"mode": "on"}, nil) }, nil,
			"all 3 resources are ready, with 0 objects", "map[found:0 mode:on]"},
		{"two objects", func() { put(t, c.server, "a", nil, red); put(t, c.server, "b", nil, red) },
			[]string{"patch configmaps copy-a", "patch configmaps copy-b"},
			"all 3 resources are ready, with 2 objects", "map[found:2 mode:on]"},
		{"one object", func() { put(t, c.server, "a", nil, nil) }, []string{"delete configmaps copy-a"},
			"all 3 resources are ready, with 1 object", "map[found:1 mode:on]"},
		{"a failure", func() { fails = true }, nil, "later", "map[found:1 mode:on]"},
		{"the collection is excluded", func() {
			fails = false
			put(t, c.server, "shared", map[string]string{"mode": "off"}, nil)
		}, []string{"delete configmaps copy-b"}, "2 of 3 resources are ready; excluded by includeWhen: copies",
			"map[found:1 mode:off]"},
	} {
		step.change()
		c.server.Took()
		for range 2 { // the next reconcile confirms a deletion
			if _, err := c.run(); err != nil && !isRequeue(err) && !errors.Is(err, unavailable) {
				t.Fatal(err)
			}
		}
		writes := slices.DeleteFunc(c.server.Took(), func(write string) bool { return strings.Contains(write, "websites") })
		if !sameWrites(writes, step.writes) {
			t.Errorf("%s: written: %q, want %q", step.name, writes, step.writes)
		}
		if got := c.ready().Message; !strings.Contains(got, step.message) {
			t.Errorf("%s: got %q, want %q", step.name, got, step.message)
		}
		if got := fmt.Sprint(statusFields(t, c.server)); got != step.status {
			t.Errorf("%s: got the status %s, want %s", step.name, got, step.status)
		}
	}
}

// References do not affect the deletion order because they have no objects to delete.
func TestStages_IgnoreReferences(t *testing.T) {
	k, _ := newTestReconciler(t, granting(
		referTo("settings", blueprint.ExternalRefMetadata{Name: "shared"}),
		newTemplate("a", "a", map[string]any{"data": map[string]any{"k": "${settings.data.k}"}}),
		referTo("named", blueprint.ExternalRefMetadata{Name: "${a.metadata.name}-x"}),
		newTemplate("b", "b", map[string]any{"data": map[string]any{"k": "${named.data.k}"}}),
	))
	if k.stageOf["a"] != 0 || k.stageOf["b"] != 1 {
		t.Errorf("got %v", k.stageOf)
	}
}

func TestWatches_OfReferences(t *testing.T) {
	k, _ := newTestReconciler(t, sharing())
	other, _ := newTestReconciler(t, granting(referTo("a", blueprint.ExternalRefMetadata{Name: "a"})))
	if n := len(k.referrers.watches(k.engine, k.GVR, k.within, k.Revision, other.Revision)); n != 1 {
		t.Errorf("got %d watches of one kind", n)
	}
}

// The watch does not report an object that was deleted between the read and the first list.
func TestReferences_ReadAgainUntilWatchHasSynced(t *testing.T) {
	c := newIdentityTest(t, sharing())
	put(t, c.server, "shared", map[string]string{"text": "roses"}, nil)
	engine := c.engine.(*platformtest.Engine)
	engine.SecondaryErr = dynamiccontroller.ErrNotSynced
	_, err := c.run()
	if delay, again := dynamiccontroller.RequeueDelay(err); !again || delay != unwatchedInterval {
		t.Errorf("before the watch has synced: %v", err)
	}
	if ready := c.ready(); ready.Status != metav1.ConditionTrue {
		t.Errorf("got %+v", ready)
	}
	_ = c.server.Tracker().Delete(configMaps, "shop", "shared")
	engine.SecondaryErr = nil
	if _, err := c.run(); err != nil {
		t.Errorf("after the watch has synced: %v", err)
	}
	if ready := c.ready(); !strings.Contains(ready.Message, "settings: ConfigMap shop/shared does not exist") {
		t.Errorf("got %+v", ready)
	}
}
