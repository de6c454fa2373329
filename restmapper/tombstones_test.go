package restmapper

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestM2_OutdatedDocumentDoesNotRestoreADeletedCRD(t *testing.T) {
	r := run(t, pollEvery(time.Millisecond))
	r.api.setCRD(widget.Group, widget.Kind, "v1")
	r.waitFor(widget)
	r.api.setGroup(widget.Group, "v1", widget.Kind)
	polls := r.api.requests("/apis")
	r.eventually("the document is read", func() bool { return r.api.requests("/apis") > polls+3 })
	r.api.deleteCRD(widget.Group, widget.Kind)
	r.eventually("the kind is not mapped", r.hasNot(widget))
	r.api.setGroup("other.example.com", "v1", "Other") // a new document
	r.waitFor(schema.GroupKind{Group: "other.example.com", Kind: "Other"})
	if !r.hasNot(widget)() {
		t.Error("the document has restored the kind")
	}
}

// After a CRD has been deleted, another API can serve its version. The discovery document can even stay the same.
func TestM2_VersionOfADeletedCRDCanBeServedByAnotherAPI(t *testing.T) {
	for name, test := range map[string]struct {
		pollPeriod, atMost time.Duration
	}{
		"polled while the tombstone exists": {time.Second, tombstoneLifetime + 2*time.Second},
		"polled later":                      {5 * time.Minute, 7 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(r *running) {
				r.pollPeriod = test.pollPeriod
				r.api.setCRD(widget.Group, widget.Kind, "v1")
				r.api.setGroup(widget.Group, "v1", widget.Kind)
				r.start()
				r.waitFor(widget)
				r.api.deleteCRD(widget.Group, widget.Kind)
				synctest.Wait()
				deleted := time.Now()
				time.Sleep(tombstoneLifetime - time.Second)
				if !r.hasNot(widget)() {
					t.Error("the kind is mapped before the tombstone has expired")
				}
				for r.hasNot(widget)() && time.Since(deleted) < time.Hour {
					time.Sleep(time.Second)
				}
				if waited := time.Since(deleted); waited > test.atMost {
					t.Errorf("the kind is mapped after %s", waited)
				}
			})
		})
	}
}

// A document that the mapper reads while it starts can list a CRD that was deleted shortly before.
func TestM2_VersionWithoutAPIServiceIsCheckedOnce(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setGroup(widget.Group, "v1", widget.Kind)
		r.start()
		r.waitFor(widget)
		r.api.mu.Lock()
		r.api.ranked = r.api.ranked[:len(r.api.ranked)-1] // the document is no longer outdated
		r.api.mu.Unlock()
		time.Sleep(tombstoneLifetime + time.Second)
		if !r.hasNot(widget)() {
			t.Error("the kind is still mapped")
		}
		if n := r.api.requests("/apis"); n != 2 {
			t.Errorf("%d reads of the document, want 2", n)
		}
		time.Sleep(3 * time.Minute)
		if n := r.api.requests("/apis"); n != 2 {
			t.Errorf("%d reads of the document, want 2", n)
		}
	})
}

func TestM2_DeletedCRDsNeedNoDiscovery(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setCRD(widget.Group, widget.Kind, "v1")
		r.api.setGroup(widget.Group, "v1", widget.Kind)
		r.start()
		r.waitFor(widget)
		before := r.api.requests("/apis")
		r.api.deleteCRD(widget.Group, widget.Kind)
		time.Sleep(3 * time.Minute) // less than a poll period
		if n := r.api.requests("/apis") - before; n > 0 {
			t.Errorf("%d reads of the document", n)
		}
	})
}

func TestM2_TombstonesAreRemovedWhilePollsReturnNotModified(t *testing.T) {
	inMemory(t, func(r *running) {
		r.start()
		r.waitFor(pod)
		for i := range 500 {
			group := fmt.Sprintf("g%d.example.com", i)
			r.api.setCRD(group, "Widget", "v1")
			r.waitFor(schema.GroupKind{Group: group, Kind: "Widget"})
			r.api.deleteCRD(group, "Widget")
			time.Sleep(time.Second)
		}
		if n := r.tombstoneCount(); n == 0 || n > 31 {
			t.Errorf("%d tombstones after 500 deletions, one per second", n)
		}
		time.Sleep(13 * time.Minute) // for two polls; the first one downloads the document
		if n := r.tombstoneCount(); n > 0 {
			t.Errorf("%d tombstones remain", n)
		}
		if r.api.requests("/apis 304") == 0 {
			t.Error("no poll has returned 304")
		}
	})
}

func (r *running) tombstoneCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(len(r.catalog.tombstones.entries), len(r.catalog.tombstones.queue))
}

// The discovery document can list the version of a CRD before the watch delivers the CRD.
func TestM3_VersionWithoutAPIServiceHasCRDPriority(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setGroup("example.com", "v1", "Deployment")
		r.api.mu.Lock()
		r.api.ranked = []string{"example.com", "", "apps"}
		r.api.mu.Unlock()
		r.start()
		r.waitFor(schema.GroupKind{Group: "example.com", Kind: "Deployment"})
		if kind, err := r.KindFor(schema.GroupVersionResource{Resource: "deployments"}); err != nil || kind.Group != "apps" {
			t.Errorf("got %v, %v", kind, err)
		}
		r.api.setCRD("a.example.com", "Deployment", "v1")
		r.waitFor(schema.GroupKind{Group: "a.example.com", Kind: "Deployment"})
		resources, err := r.ResourcesFor(schema.GroupVersionResource{Resource: "deployments"})
		if want := "[apps a.example.com example.com]"; err != nil || groupsOf(resources) != want {
			t.Errorf("got groups %s, error %v, want %s", groupsOf(resources), err, want)
		}
	})
}

func groupsOf(resources []schema.GroupVersionResource) string {
	groups := []string{}
	for _, r := range resources {
		groups = append(groups, r.Group)
	}
	return fmt.Sprint(groups)
}

func TestM3_APIServiceGroupIsRankedByTheDocument(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setGroup("apiregistration.k8s.io", "v1", "Deployment")
		r.start()
		r.waitFor(pod)
		kind, err := r.KindFor(schema.GroupVersionResource{Resource: "deployments"})
		if err != nil || kind.Group != "apiregistration.k8s.io" {
			t.Errorf("got %v, %v", kind, err)
		}
	})
}

// Without APIServices, the order of groups in the document is the only information about priorities.
func TestM3_DocumentOrderIsUsedUntilAPIServicesAreKnown(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.setGroup("example.com", "v1", "Deployment")
		r.api.mu.Lock()
		r.api.ranked = []string{"example.com", "", "apps"}
		r.api.services.status = 403
		r.api.mu.Unlock()
		r.start()
		r.waitFor(pod)
		deployments := schema.GroupVersionResource{Resource: "deployments"}
		if kind, err := r.KindFor(deployments); err != nil || kind.Group != "example.com" {
			t.Errorf("got %v, %v", kind, err)
		}
		r.api.mu.Lock()
		r.api.services.status = 0
		r.api.mu.Unlock()
		r.eventually("priorities are used", func() bool {
			kind, err := r.KindFor(deployments)
			return err == nil && kind.Group == "apps"
		})
	})
}

// A tombstone is removed when a CRD claims its version again. The next tombstone of the version has the full lifetime.
func TestM2_CRDsAndVersionsCanBeRestoredWhileTombstonesExist(t *testing.T) {
	const pause = tombstoneLifetime / 3
	inMemory(t, func(r *running) {
		r.pollPeriod = time.Second
		r.api.setCRD(widget.Group, widget.Kind, "v1", "v2")
		r.api.setGroup(widget.Group, "v1", widget.Kind)
		r.start()
		r.waitFor(widget)
		for range 4 {
			r.api.deleteCRD(widget.Group, widget.Kind)
			time.Sleep(pause)
			if !r.hasNot(widget)() {
				t.Error("the kind of a deleted CRD is mapped")
			}
			r.api.setCRD(widget.Group, widget.Kind, "v1", "v2")
			time.Sleep(pause)
			r.waitFor(widget, "v1")
			r.api.setCRD(widget.Group, widget.Kind, "v2")
			time.Sleep(pause)
			if !r.hasNot(widget, "v1")() {
				t.Error("a version that the CRD does not serve is mapped")
			}
			r.api.setCRD(widget.Group, widget.Kind, "v1", "v2")
			time.Sleep(pause)
			r.waitFor(widget, "v1")
		}
		r.api.deleteCRD(widget.Group, widget.Kind)
		time.Sleep(tombstoneLifetime - time.Second)
		if !r.hasNot(widget)() {
			t.Error("the kind is mapped before the newest tombstone has expired")
		}
	})
}

func TestTombstones_ExpireAfterTheirLifetime(t *testing.T) {
	now := time.Now()
	again := schema.GroupVersion{Group: "again.example.com", Version: "v1"}
	listed := schema.GroupVersion{Group: "listed.example.com", Version: "v1"}
	ts := newTombstones()
	ts.add(again, now)
	ts.remove(again)
	ts.add(listed, now)
	ts.list(listed)
	ts.add(again, now.Add(time.Second))
	ts.expire(now.Add(ts.lifetime))
	if !ts.has(again) || !ts.has(listed) {
		t.Errorf("a tombstone expired too early, or before the documents were read; remaining: %v", ts.entries)
	}
	ts.expireAll(now.Add(ts.lifetime))
	if !ts.has(again) || ts.has(listed) {
		t.Errorf("got tombstones %v, want one for %s", ts.entries, again)
	}
}

func TestCatalog_TombstonesBelongToVersionsWithoutAnOwner(t *testing.T) {
	gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
	resource := func(name string) *resource { return &resource{name: name, kind: name} }
	a := &crd{group: gv.Group, established: true, versions: []string{"v1"}, resource: resource("a")}
	b := &crd{group: gv.Group, established: true, versions: []string{"v1"}, resource: resource("b")}
	v2 := &crd{group: gv.Group, established: true, versions: []string{"v2"}, resource: resource("a")}
	w := newCatalog()
	for _, step := range []struct {
		name  string
		event event
		want  bool // the version has a tombstone
	}{
		{"a CRD is created", crdEvent("a", a), false},
		{"another CRD is created", crdEvent("b", b), false},
		{"one of the CRDs is deleted", crdEvent("a", nil), false},
		{"the last CRD is deleted", crdEvent("b", nil), true},
		{"a CRD is created again", crdEvent("a", a), false},
		{"its version is removed", crdEvent("a", v2), true},
		{"its version is restored", crdEvent("a", a), false},
		{"an APIService takes over the version", serviceEvent(gv, &service{}), false},
		{"the APIService is deleted", serviceEvent(gv, nil), false},
		{"the CRD is deleted again", crdEvent("a", nil), true},
		{"an APIService is created", serviceEvent(gv, &service{}), false},
		{"the last owner is deleted", serviceEvent(gv, nil), true},
	} {
		step.event(w)
		if got := w.tombstones.has(gv); got != step.want {
			t.Errorf("after %s: tombstone: %t, want %t", step.name, got, step.want)
		}
	}
}

// The time between the polls is longer than the lifetime of a tombstone.
func TestM2_DocumentIsReadWhenTheTombstoneOfAListedVersionExpires(t *testing.T) {
	inMemory(t, func(r *running) {
		r.pollPeriod = time.Hour
		r.api.setCRD(widget.Group, widget.Kind, "v1")
		r.api.setGroup(widget.Group, "v1", widget.Kind)
		r.start()
		r.waitFor(widget)
		time.Sleep(time.Minute)
		r.api.deleteCRD(widget.Group, widget.Kind)
		synctest.Wait()
		deleted := time.Now()
		r.Reset() // reads the document, which lists the version
		time.Sleep(tombstoneLifetime - time.Second)
		if !r.hasNot(widget)() {
			t.Error("the kind is mapped before the tombstone has expired")
		}
		r.waitFor(widget)
		if waited := time.Since(deleted); waited > tombstoneLifetime+time.Second {
			t.Errorf("the kind is mapped after %s", waited)
		}
	})
}

// The watches can change the owner of a version while a document is being read.
func TestCatalog_DocumentDoesNotRestoreVersionsThatWereExcludedBeforeOrAfterTheRequest(t *testing.T) {
	gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
	w := newCatalog()
	documentEvent(false, []documentVersion{{gv: gv, excluded: true}})(w)
	if d := w.discovered[gv.Group][gv.Version]; d != nil {
		t.Errorf("a version that was excluded before the request has been discovered: %+v", d)
	}
	crdEvent("a", &crd{group: gv.Group, versions: []string{"v1"}, resource: &resource{name: "a", kind: "A"}})(w)
	documentEvent(false, []documentVersion{{gv: gv}})(w)
	if d := w.discovered[gv.Group][gv.Version]; d != nil {
		t.Errorf("a version that was excluded after the request has been discovered: %+v", d)
	}
}
