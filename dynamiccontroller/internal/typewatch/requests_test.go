package typewatch

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNotOlderThanCache(t *testing.T) {
	const notOlder, exact = metav1.ResourceVersionMatchNotOlderThan, metav1.ResourceVersionMatchExact
	for name, test := range map[string]struct {
		newest   string
		in, want metav1.ListOptions
	}{
		"a first list of an empty cache": {"",
			metav1.ListOptions{ResourceVersion: "0", Limit: 500}, metav1.ListOptions{ResourceVersion: "0", Limit: 500}},
		"a first list of a later run": {"20",
			metav1.ListOptions{ResourceVersion: "0", Limit: 500}, metav1.ListOptions{ResourceVersion: "20", ResourceVersionMatch: notOlder}},
		"a relist of an older version": {"20",
			metav1.ListOptions{ResourceVersion: "9"}, metav1.ListOptions{ResourceVersion: "20", ResourceVersionMatch: notOlder}},
		"a relist of a newer version": {"20",
			metav1.ListOptions{ResourceVersion: "21"}, metav1.ListOptions{ResourceVersion: "21"}},
		"the most recent version": {"20",
			metav1.ListOptions{Limit: 500}, metav1.ListOptions{Limit: 500}},
		"a page after the first": {"20",
			metav1.ListOptions{Continue: "c", Limit: 500}, metav1.ListOptions{Continue: "c", Limit: 500}},
		"an exact version": {"20",
			metav1.ListOptions{ResourceVersion: "9", ResourceVersionMatch: exact}, metav1.ListOptions{ResourceVersion: "9", ResourceVersionMatch: exact}},
		"a first list, after versions that cannot be compared": {"x",
			metav1.ListOptions{ResourceVersion: "0", Limit: 500}, metav1.ListOptions{Limit: 500}},
		"a relist of such a version": {"x",
			metav1.ListOptions{ResourceVersion: "y"}, metav1.ListOptions{ResourceVersion: "y"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &requests{newest: func() string { return test.newest }}
			r.notOlderThanCache(&test.in)
			if diff := cmp.Diff(test.want, test.in); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// runs runs the pool until f returns.
func runs(p *Pool, f func()) {
	p.Begin(context.Background())
	synctest.Wait()
	f()
	p.End()
}

func TestD3_ListsAreNotOlderThanTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a")
		s.lag()
		p := newTestPool(s)
		n := p.Acquire(wantDepth(Full))
		runs(p, func() {
			s.put("b")
			synctest.Wait()
		})
		e := &ear{}
		n.Attach(e.sink())
		runs(p, func() {
			if diff := cmp.Diff([]string{"known ns/a", "known ns/b", "synced"}, e.take()); diff != "" {
				t.Error(diff)
			}
		})
		lists := s.listed()
		if last := lists[len(lists)-1]; last.ResourceVersion != "2" || last.ResourceVersionMatch != metav1.ResourceVersionMatchNotOlderThan {
			t.Errorf("the second run listed with %+v", last)
		}
		n.Release()
		n.Leave(nil)
	})
}

// A deeper watch lists nothing older than the events of the watch that it is to replace.
func TestD3_ReplacementListsNothingOlderThanTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a")
		s.lag()
		p := newTestPool(s)
		keys := attachWitness(t, p.Acquire(wantDepth(Metadata)))
		runs(p, func() {
			s.put("b")
			synctest.Wait()
			full := attachWitness(t, p.Acquire(wantDepth(Full)))
			synctest.Wait()
			for _, w := range []*witness{keys, full} {
				if diff := w.knows(s.versions()); diff != "" {
					t.Error(diff)
				}
				w.leave()
			}
		})
		lists := s.listed()
		if last := lists[len(lists)-1]; last.ResourceVersion != "2" {
			t.Errorf("it listed with %+v", last)
		}
	})
}

// An etcd that was restored from a backup has lost versions, and the objects that were created after the backup.
func TestD3_RestoredEtcdReplacesTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a")
		p := newTestPool(s)
		n := p.Acquire(wantDepth(Full))
		runs(p, func() {
			s.put("lost")
			s.put("a")
			synctest.Wait()
		})
		s.restore(1)
		e := &ear{}
		n.Attach(e.sink())
		runs(p, func() {
			if diff := cmp.Diff([]string{"known ns/a", "ns/lost 2>-", "synced"}, e.take()); diff != "" {
				t.Error(diff)
			}
		})
		s.put("b")
		before := len(s.listed())
		n.Attach(e.sink())
		runs(p, func() {
			if diff := cmp.Diff([]string{"known ns/a", "known ns/b", "synced"}, e.take()); diff != "" {
				t.Error(diff)
			}
		})
		if lists := s.listed()[before:]; len(lists) != 1 || lists[0].ResourceVersion != "1" {
			t.Errorf("the run after that listed with %+v", lists)
		}
		n.Release()
		n.Leave(nil)
	})
}

// An API server that answers 410 no longer has the version of the cache. The most recent version is listed instead.
func TestD3_ListOfAnExpiredVersionIsFollowedByAListOfTheMostRecent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a")
		p := newTestPool(s)
		n := p.Acquire(wantDepth(Full))
		runs(p, func() {})
		s.put("b")
		s.delete("a")
		s.expire()
		e := &ear{}
		n.Attach(e.sink())
		before := len(s.listed())
		runs(p, func() {
			if diff := cmp.Diff([]string{"known ns/b", "ns/a 1>-", "synced"}, e.take()); diff != "" {
				t.Error(diff)
			}
		})
		var versions []string
		for _, options := range s.listed()[before:] {
			versions = append(versions, options.ResourceVersion)
		}
		if diff := cmp.Diff([]string{"1", ""}, versions); diff != "" {
			t.Errorf("the versions that were listed: %s", diff)
		}
		release(n)
	})
}
