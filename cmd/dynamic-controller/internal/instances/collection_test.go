package instances

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// paging returns a Blueprint whose instances have a ConfigMap for each of spec.names, and the given resources.
func paging(others ...blueprint.Resource) *blueprint.Blueprint {
	b := chain(0)
	text, boolean := map[string]any{"type": "string"}, map[string]any{"type": "boolean"}
	b.Spec.Type.Schema = map[string]any{"properties": map[string]any{"spec": map[string]any{"type": "object",
		"properties": map[string]any{
			"names": map[string]any{"type": "array", "items": text}, "text": text, "off": boolean,
			"n": map[string]any{"type": "integer"},
		}}}}
	pages := newTemplate("pages", "page-${name}", map[string]any{
		"data": map[string]any{"text": "${self.spec.?text.orValue('')}"},
	})
	pages.ForEach = []map[string]string{{"name": "${self.spec.names}"}}
	b.Spec.Resources = append([]blueprint.Resource{pages}, others...)
	return b
}

// summary is a resource that reads all pages.
func summary() blueprint.Resource {
	return newTemplate("summary", "summary", map[string]any{"data": map[string]any{
		"names": "${pages.map(p, p.metadata.name).join(' ')}",
	}})
}

func setSpec(self *unstructured.Unstructured, names []string, more map[string]any) {
	spec := map[string]any{}
	if names != nil {
		list := []any{}
		for _, name := range names {
			list = append(list, name)
		}
		spec["names"] = list
	}
	for field, value := range more {
		spec[field] = value
	}
	self.Object["spec"] = spec
}

// fromCache makes the cache reflect deletions.
func fromCache(r *Reconciler, server *platformtest.Server) {
	server.PrependReactor("delete", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		object := &unstructured.Unstructured{}
		object.SetNamespace(action.GetNamespace())
		object.SetName(action.(clienttesting.DeleteAction).GetName())
		return false, nil, r.engine.(*platformtest.Engine).Secondary.Delete(object)
	})
}

func TestCollection_FollowsItsList(t *testing.T) {
	k, server := newTestReconciler(t, paging(summary()))
	fromCache(k, server)
	self := newFlowers(t, server)
	for _, step := range []struct {
		name   string
		names  []string
		more   map[string]any
		writes []string
		ready  bool
	}{
		{"the first items", []string{"a", "b", "c"}, nil, []string{"patch websites flowers", "patch configmaps page-a",
			"patch configmaps page-b", "patch configmaps page-c", "patch configmaps summary"}, true},
		{"nothing has changed", []string{"a", "b", "c"}, nil, nil, true},
		{"another order", []string{"c", "a", "b"}, nil, []string{"patch configmaps summary"}, true},
		{"an item is removed", []string{"c", "b"}, nil,
			[]string{"patch configmaps summary", "delete configmaps page-a"}, true},
		{"an item is added at the front", []string{"d", "c", "b"}, nil,
			[]string{"patch configmaps page-d", "patch configmaps summary"}, true},
		{"all items change", []string{"d", "c", "b"}, map[string]any{"text": "x"}, []string{"patch configmaps page-d",
			"patch configmaps page-c", "patch configmaps page-b"}, true},
		{"a list that cannot be evaluated prunes nothing", nil, map[string]any{"text": "x"}, nil, false},
		{"a duplicate item writes nothing", []string{"d", "e", "d"}, map[string]any{"text": "y"}, nil, false},
		{"too many items write nothing", slices.Repeat([]string{"x"}, 1001), nil, nil, false},
		{"no items", []string{}, nil, []string{"patch configmaps summary", "delete configmaps page-b",
			"delete configmaps page-c", "delete configmaps page-d"}, true},
		{"items again", []string{"a"}, nil, []string{"patch configmaps page-a", "patch configmaps summary"}, true},
	} {
		setSpec(self, step.names, step.more)
		got, err := applyChildren(t, k, self)
		if err != nil || got.Ready != step.ready {
			t.Fatalf("%s: ready %t, %v, %v, %v", step.name, got.Ready, got.Problems, got.Unready, err)
		}
		if writes := server.Took(); !sameWrites(writes, step.writes) {
			t.Errorf("%s: written: %q, want %q", step.name, writes, step.writes)
		}
	}
	child := childNamed(t, server, "page-a")
	if child.GetLabels()[resourceLabel] != "pages" || child.GetAnnotations()[resourceAnnotation] != "pages" {
		t.Errorf("got the child %v", child.Object["metadata"])
	}
}

// A waiting resource makes the desired set incomplete, so no item is pruned.
func TestCollection_UnresolvedListPrunesNothing(t *testing.T) {
	source := newTemplate("source", "source", map[string]any{"data": map[string]any{"a": "${self.spec.text}"}})
	source.ReadyWhen = []string{"!self.spec.off"}
	b := paging(source)
	b.Spec.Resources[0].ForEach = []map[string]string{{"name": "${source.data.a.split(' ')}"}}
	k, server := newTestReconciler(t, b)
	fromCache(k, server)
	self := newFlowers(t, server)
	setSpec(self, nil, map[string]any{"text": "a b", "off": false})
	if step, err := applyChildren(t, k, self); err != nil || !step.Ready {
		t.Fatalf("got %v, %v, %v", step.Problems, step.Unready, err)
	}
	server.Took()
	setSpec(self, nil, map[string]any{"text": "a", "off": true})
	if step, err := applyChildren(t, k, self); err != nil || len(step.Waiting) != 1 {
		t.Fatalf("got %v, %v", step, err)
	}
	if writes := server.Took(); !slices.Equal(writes, []string{"patch configmaps source"}) {
		t.Errorf("written: %q", writes)
	}
	server.Fails("patch", "source", apierrors.NewServiceUnavailable("test"))
	setSpec(self, nil, map[string]any{"text": "", "off": false})
	if _, err := applyChildren(t, k, self); !apierrors.IsServiceUnavailable(err) {
		t.Fatalf("got %v", err)
	}
	isDeletion := func(write string) bool { return strings.HasPrefix(write, "delete") }
	if writes := server.Took(); slices.ContainsFunc(writes, isDeletion) {
		t.Errorf("written: %q", writes)
	}
}

func TestCollection_Excluded(t *testing.T) {
	b := paging(broken())
	b.Spec.Resources[0].IncludeWhen = []string{"!self.spec.off"}
	k, server := newTestReconciler(t, b)
	fromCache(k, server)
	self := newFlowers(t, server)
	setSpec(self, []string{"a", "b"}, map[string]any{"off": false, "n": int64(1)})
	if step, err := applyChildren(t, k, self); err != nil || !step.Ready {
		t.Fatalf("got %v, %v, %v", step.Problems, step.Unready, err)
	}
	server.Took()
	// Children whose items are no longer in the list are found by their annotation.
	setSpec(self, []string{"b", "c"}, map[string]any{"off": true, "n": int64(0)})
	if _, err := applyChildren(t, k, self); err != nil {
		t.Fatal(err)
	}
	if writes := server.Took(); !slices.Equal(writes, []string{"delete configmaps page-a", "delete configmaps page-b"}) {
		t.Errorf("written: %q", writes)
	}
}

// Reconciling an unchanged instance sends no requests for its children.
func TestCollection_ReadsChildrenFromCache(t *testing.T) {
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprint(i))
	}
	c := newIdentityTest(t, paging(summary()))
	setSpec(c.self, names, nil)
	if err := c.server.Tracker().Update(websites, c.self, "shop"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.run(); err != nil {
		t.Fatal(err)
	}
	c.as.requests = nil
	c.server.Took()
	c.server.ClearActions()
	ready, err := c.run()
	if err != nil {
		t.Fatal(err)
	}
	c.wantCondition(ready, reasonReady, "all 2 resources are ready, with 201 objects")
	if len(c.as.requests) > 0 {
		t.Errorf("as the ServiceAccount: %q", c.as.requests)
	}
	for _, action := range c.server.Actions() {
		if action.GetResource().Resource == "configmaps" {
			t.Errorf("sent %s %s", action.GetVerb(), action.GetResource().Resource)
		}
	}
}

// runProgress reconciles the instance. It returns the delay before the next reconcile and the number of status writes.
func (c *identityTest) runProgress() (after time.Duration, writes int) {
	c.Helper()
	_, err := c.run()
	after, again := dynamiccontroller.RequeueDelay(err)
	if err != nil && !again {
		c.Fatal(err)
	}
	for _, write := range c.server.Took() {
		if write == "patch websites flowers status" {
			writes++
		}
	}
	return after, writes
}

// Each child that becomes ready changes the message. To save writes, the status is written only after an interval, or
// when the instance is ready.
func TestCollection_LimitsStatusWritesWhileBecomingReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var names []string
		for i := range 20 {
			names = append(names, fmt.Sprint(i))
		}
		b := paging()
		b.Spec.Resources[0].ReadyWhen = []string{"has(each.status)"}
		c := newIdentityTest(t, b)
		setSpec(c.self, names, nil)
		if err := c.server.Tracker().Update(websites, c.self, "shop"); err != nil {
			t.Fatal(err)
		}
		readyChild := func(name string) {
			child := childNamed(t, c.server, "page-"+name).DeepCopy()
			child.Object["status"] = map[string]any{"up": true}
			if err := c.engine.(*platformtest.Engine).Secondary.Update(child); err != nil {
				t.Fatal(err)
			}
		}
		if _, writes := c.runProgress(); writes != 1 {
			t.Errorf("the first reconcile wrote the status %d times", writes)
		}
		for _, name := range names[:10] {
			readyChild(name)
			if after, writes := c.runProgress(); writes > 0 || after != progressInterval {
				t.Errorf("child %s is ready: %d status writes, requeued after %s", name, writes, after)
			}
		}
		time.Sleep(progressInterval)
		if _, writes := c.runProgress(); writes != 1 || !strings.Contains(c.ready().Message, "10 of 20 are not ready") {
			t.Errorf("after the interval: %d status writes, %+v", writes, c.ready())
		}
		for _, name := range names[10:] {
			readyChild(name)
			c.runProgress()
		}
		c.wantCondition(ptr.To(c.ready()), reasonReady)
	})
}

// Forged items of a collection cause no reads and never replace a real item.
func TestCollection_IgnoresForgedItems(t *testing.T) {
	c := newIdentityTest(t, paging(summary()))
	setSpec(c.self, []string{"a", "b"}, nil)
	if err := c.server.Tracker().Update(websites, c.self, "shop"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.run(); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		c.addConfigMap("shop", fmt.Sprint("page-forged", i), func(object *unstructured.Unstructured) {
			object.SetUID("forged")
			object.SetAnnotations(map[string]string{resourceAnnotation: "pages"})
			object.SetFinalizers([]string{"example.com/x"})
			object.SetDeletionTimestamp(ptr.To(metav1.Now()))
			object.SetOwnerReferences([]metav1.OwnerReference{{UID: c.self.GetUID(), Controller: ptr.To(true)}})
		})
	}
	for _, unreadable := range []bool{false, true} {
		c.identities.unreadable, c.as.requests = unreadable, nil
		if _, err := c.run(); err != nil && !isRequeue(err) {
			t.Fatal(err)
		}
		for _, request := range c.as.requests {
			if strings.Contains(request, "forged") {
				t.Errorf("unreadable %t: sent %s", unreadable, request)
			}
		}
		if names := childNamed(t, c.server, "summary").Object["data"]; fmt.Sprint(names) != "map[names:page-a page-b]" {
			t.Errorf("unreadable %t: the summary has %v", unreadable, names)
		}
		if unreadable && len(c.as.requests) != 3 {
			t.Errorf("as the ServiceAccount: %q, want one read of each child", c.as.requests)
		}
	}
}

func TestCollection_CountsTowardsBudget(t *testing.T) {
	k, server := newTestReconciler(t, paging(summary()))
	self := newFlowers(t, server)
	self.SetAnnotations(map[string]string{budgetAnnotation: "3"})
	setSpec(self, []string{"a", "b", "c"}, nil)
	step, err := applyChildren(t, k, self)
	if err != nil || len(step.Problems) != 1 ||
		!strings.Contains(step.Problems.Error(), "2 resources with 4 objects exceed the budget of 3 objects") {
		t.Fatalf("got %v, %v", step.Problems, err)
	}
	if writes := server.Took(); len(writes) > 0 {
		t.Errorf("written: %q", writes)
	}
	setSpec(self, []string{"a", "b"}, nil)
	if step, err := applyChildren(t, k, self); err != nil || !step.Ready {
		t.Errorf("got %v, %v", step.Problems, err)
	}
}

// The children of a collection together have the share of one resource. A change in their number rarely changes their
// budgets.
func TestCollection_SharesOfTheBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		share, items := rapid.IntRange(0, maxBudget).Draw(t, "share"), rapid.IntRange(0, 1000).Draw(t, "items")
		if each := itemShare(share, items); each*items > share {
			t.Fatalf("each of %d objects has a share of %d of %d", items, each, share)
		}
	})
	changes, last := 0, itemShare(maxBudget, 1)
	for items := range 1000 {
		if now := itemShare(maxBudget, items+1); now != last {
			changes, last = changes+1, now
		}
	}
	if changes != 6 {
		t.Errorf("the share changes %d times", changes)
	}
	k, server := newTestReconciler(t, paging())
	k.Children[0].HasCRD = true
	self := newFlowers(t, server)
	setSpec(self, []string{"a", "b"}, nil)
	if step, err := applyChildren(t, k, self); err != nil || len(step.Problems) > 0 {
		t.Fatalf("got %v, %v", step.Problems, err)
	}
	if got := childNamed(t, server, "page-a").GetAnnotations()[budgetAnnotation]; got != "512" {
		t.Errorf("got a child with the budget %s", got)
	}
}

func TestShortened_CountsFurtherErrors(t *testing.T) {
	single, forbid := errors.New("a"), forbidden("get")
	if got := shortened(single); got != single {
		t.Errorf("got %v", got)
	}
	var all []error
	for i := range 20 {
		all = append(all, fmt.Errorf("child %d: %w", i, forbid))
	}
	got := shortened(errors.Join(single, errors.Join(all...)))
	if !apierrors.IsForbidden(got) || strings.Count(got.Error(), "\n") != 10 ||
		!strings.HasPrefix(got.Error(), "a\nchild 0") || !strings.HasSuffix(got.Error(), "\nand 11 more") {
		t.Errorf("got %v", got)
	}
}
