package restmapper

import (
	"errors"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// setVerbs sets the verbs of all resources of a group in the discovery document.
func (f *fakeAPI) setVerbs(group string, verbs ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.groups[group].DeepCopy()
	for i := range next.Versions {
		for j := range next.Versions[i].Resources {
			next.Versions[i].Resources[j].Verbs = verbs
		}
	}
	f.groups[group] = next
}

func TestM3_VerbsAreThoseInDiscovery(t *testing.T) {
	deployments := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	r := newRunning(t, pollEvery(pollSoon))
	if _, err := r.Verbs(deployments); !errors.Is(err, ErrNotSynced) {
		t.Errorf("got %v before the first sync, want ErrNotSynced", err)
	}
	r.api.setVerbs("apps", "get", "list")
	r.api.setCRD(widget.Group, widget.Kind, "v1")
	r.start()
	r.waitFor(deployment)
	r.waitFor(widget)
	if verbs, err := r.Verbs(deployments); err != nil || !slices.Equal(verbs, []string{"get", "list"}) {
		t.Errorf("got verbs %q, %v", verbs, err)
	}
	widgets := schema.GroupVersionResource{Group: widget.Group, Version: "v1", Resource: "widgets"}
	if verbs, err := r.Verbs(widgets); err != nil || !slices.Equal(verbs, crdVerbs) {
		t.Errorf("got verbs %q for the type of a CRD, %v", verbs, err)
	}
	for _, unknown := range []schema.GroupVersionResource{
		{Group: "nosuch.example.com", Version: "v1", Resource: "deployments"},
		{Group: "apps", Version: "v2", Resource: "deployments"},
		{Group: "apps", Version: "v1", Resource: "deployment"},
		{Group: "apps", Version: "v1", Resource: "lists"},
	} {
		if verbs, err := r.Verbs(unknown); !meta.IsNoMatchError(err) {
			t.Errorf("%v: got %q, %v, want a NoMatch error", unknown, verbs, err)
		}
	}

	r.api.serveLegacy("apps")
	r.api.handle("/apis/apps/v1", serveJSON(metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}, GroupVersion: "apps/v1", APIResources: []metav1.APIResource{
			{Name: "deployments", Kind: "Deployment", Namespaced: true, Verbs: []string{"create"}},
		},
	}))
	r.eventually("the verbs are read from a server without aggregated discovery", func() bool {
		verbs, err := r.Verbs(deployments)
		return err == nil && slices.Equal(verbs, []string{"create"})
	})
}

func TestM4_SubscriberReceivesChangedVerbs(t *testing.T) {
	r := newRunning(t, pollEvery(pollSoon))
	changes := make(chan Change, 100)
	r.Subscribe(func(c Change) { changes <- c })
	r.api.setVerbs("apps", "get", "list")
	r.start()
	next := func() Change {
		t.Helper()
		deadline := time.After(time.Minute)
		for {
			select {
			case c := <-changes:
				if c.Kind == deployment {
					return c
				}
			case <-deadline:
				t.Fatal("the subscriber has not been called")
			}
		}
	}
	if c := next(); c.Type != Added {
		t.Errorf("got %+v, want Added", c)
	}
	r.api.setVerbs("apps", "get")
	if c := next(); c.Type != Changed || !sameMappings(c.Old, c.New) {
		t.Errorf("got %+v, want Changed with the same mappings", c)
	}
}

// A change of verbs that is reverted before it is delivered is dropped, as any other change is.
func TestM4_RevertedVerbsAreNotDelivered(t *testing.T) {
	w := newCatalog()
	gv := schema.GroupVersion{Group: "parts.example.com", Version: "v1"}
	state := func(verbs ...string) *group {
		groups, _, _ := w.setDocument(false, []documentVersion{{gv: gv, resources: []*resource{
			{name: "wheels", singular: "wheel", kind: "Wheel", verbs: verbs},
		}}}, metav1.Now().Time)
		if groups[gv.Group] == nil {
			t.Errorf("verbs %q do not affect the group", verbs)
		}
		return w.group(gv.Group)
	}
	old, now := state("get", "list"), state("get")
	s := &subscription{changes: map[schema.GroupKind]*pending{}}
	s.add(difference(old, now, &touched{whole: true}))
	if len(s.order) != 1 {
		t.Fatalf("got %d changes, want one", len(s.order))
	}
	s.add(difference(now, old, &touched{whole: true}))
	if len(s.order) != 0 {
		t.Errorf("got %d changes after the verbs were restored, want none", len(s.order))
	}
}
