package typewatch

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestHistories_Begin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h histories
		expect := func(after int64, group string, isNew, everywhere bool, now int64) {
			t.Helper()
			n, e := h.begin(after, group)
			if n != isNew || e != everywhere || h.of(group) != now {
				t.Errorf("after %d, %s: got %t, %t, history %d", after, group, n, e, h.of(group))
			}
		}
		expect(0, "a", true, true, 1)
		expect(0, "a", false, false, 1) // another watch notices the same restore
		expect(0, "b", false, false, 1)
		expect(1, "a", true, true, 2)
		expect(2, "a", true, false, 3) // the group begins histories all the time
		if h.of("b") != 2 {
			t.Errorf("another group has history %d", h.of("b"))
		}
		expect(2, "b", true, true, 3)
		expect(4, "a", true, false, 5)
		time.Sleep(historyPeriod)
		expect(5, "a", true, true, 6)
		if h.total() != 6 {
			t.Errorf("got %d histories", h.total())
		}
	})
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// builtIn returns options for a watch of a built-in type. Such a watch is resumed after a lost connection.
func builtIn(n int) Options {
	return Options{Key: Key{
		Selection:  Selection{GVR: configMaps, LabelSelector: fmt.Sprintf("watch notin (x%d)", n)},
		Projection: Metadata,
	}}
}

// relists returns the lists of a server after the first n, without checks.
func (s *server) relists(n int) []listRequest {
	return slices.DeleteFunc(s.listed()[n:], func(list listRequest) bool { return list.Limit == 1 })
}

// A restore that one watch notices is acted on by all watches. They would otherwise be resumed from a version that does
// not exist yet, and miss all changes until then.
func TestD3_RestoreIsNoticedByOneWatchAndRelistsAll(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		const others, secondaries = 40, 15 // together more than the burst of the limiter
		var built []*Subscription
		isSecondary := map[string]bool{}
		for n := range others + secondaries {
			o := builtIn(n)
			o.Secondary = n >= others
			isSecondary[o.LabelSelector] = o.Secondary
			built = append(built, p.Subscribe(o, nil))
		}
		child := built[others]
		crd := p.Subscribe(options(Full), nil)
		r := attachRecorder(child)
		for range 5 {
			srv.put("a")
		}
		srv.put("lost")
		time.Sleep(time.Minute)
		r.take()
		before := len(srv.listed())

		srv.restore(1)
		time.Sleep(10 * time.Second)
		r.expect(t, "after the restore", "ns/a 5>1", "ns/lost 6>-")
		if p.History() != 1 {
			t.Errorf("got history %d", p.History())
		}
		lists := srv.relists(before)
		// Two by the watch that noticed it: its last version does not exist.
		if len(lists) != others+secondaries+2 {
			t.Fatalf("got %d lists", len(lists))
		}
		first := slices.DeleteFunc(slices.Clone(lists[2:2+historyRelistBurst]), func(list listRequest) bool {
			return !isSecondary[list.LabelSelector]
		})
		if len(first) != secondaries {
			t.Errorf("only %d of the watches of children were among the first ones", len(first))
		}
		for _, s := range built {
			if record, _ := s.View().Store().Get("ns/a"); versionOr(record, "none") != "1" {
				t.Fatalf("a watch has version %s", versionOr(record, "none"))
			}
		}
		srv.put("a")
		synctest.Wait()
		r.expect(t, "a change after the restore", "ns/a 1>2")

		// A second restore is another history.
		for range 3 {
			srv.put("a")
		}
		synctest.Wait()
		r.take()
		srv.restore(2)
		time.Sleep(10 * time.Second)
		r.expect(t, "after the second restore", "ns/a 5>2")
		if p.History() != 2 {
			t.Errorf("got history %d", p.History())
		}
		for _, s := range append(built, crd) {
			closeAndWait(s)
		}
	})
}

// Without a custom resource, a restore is noticed by a check.
func TestD3_RestoreIsNoticedByBuiltInTypes(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		all := []*Subscription{p.Subscribe(builtIn(0), nil), p.Subscribe(builtIn(1), nil), p.Subscribe(builtIn(2), nil)}
		for range 5 {
			srv.put("a")
		}
		time.Sleep(time.Minute)
		before := len(srv.listed())
		srv.closeWatches()
		time.Sleep(time.Minute)
		if lists := srv.listed()[before:]; len(lists) != 1 || lists[0].Limit != 1 || p.History() != 0 {
			t.Errorf("after a lost connection: history %d, lists %+v", p.History(), lists)
		}
		// Bookmarks have reported later versions than the last event. The backup was made in between.
		srv.putWith("other", map[string]string{"watch": "x0"})
		srv.putWith("other", map[string]string{"watch": "x0"})
		srv.bookmark()
		time.Sleep(time.Minute)
		srv.set(func() { srv.refuseLists[Metadata] = errors.New("not ready") })
		srv.restore(6)
		time.Sleep(10 * time.Second)
		srv.set(func() { clear(srv.refuseLists) })
		time.Sleep(20 * time.Second)
		for _, s := range all {
			if record, _ := s.View().Store().Get("ns/a"); versionOr(record, "none") != "5" || p.History() != 1 {
				t.Errorf("got history %d and version %s", p.History(), versionOr(record, "none"))
			}
			closeAndWait(s)
		}
	})
}

// A type that is gone has no versions. When it is served again, it does not begin another history.
func TestD3_ReinstalledTypeIsNoOtherRestore(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		s := p.Subscribe(options(Full), nil)
		for range 5 {
			srv.put("a")
		}
		time.Sleep(time.Minute)
		p.histories.begin(0, "other.example.com")
		gone := apierrors.NewNotFound(widgets.GroupResource(), "")
		srv.set(func() { srv.refuseLists[Full] = gone })
		srv.restore(1)
		time.Sleep(time.Minute)
		p.Vanished(widgets)
		synctest.Wait()
		srv.set(func() { clear(srv.refuseLists) })
		p.Appeared(widgets)
		time.Sleep(time.Minute)
		if !s.HasSynced() || p.History() != 1 {
			t.Errorf("synced: %t, history %d", s.HasSynced(), p.History())
		}
		closeAndWait(s)
	})
}

// A list of a server that lags behind is no restore.
func TestD3_OutdatedListIsNoRestore(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		s, other := p.Subscribe(options(Full), nil), p.Subscribe(builtIn(0), nil)
		synctest.Wait()
		for range 5 {
			srv.put("a")
		}
		time.Sleep(time.Minute)
		r := attachRecorder(s)
		r.take()
		srv.set(func() { srv.outdated = true })
		before := len(srv.listed())
		srv.closeWatches()
		time.Sleep(10 * time.Second)
		r.expect(t, "after an outdated list")
		if lists := srv.relists(before); len(lists) != 2 || lists[1].ResourceVersion != "" || p.History() != 0 {
			t.Errorf("got history %d and the lists %+v", p.History(), lists)
		}
		closeAndWait(other)
		closeAndWait(s)
	})
}

// The replacement of a watch that has not been relisted yet must not begin another history.
func TestD3_SwapDuringARestoreIsNoOtherRestore(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		s := p.Subscribe(builtIn(0), nil)
		attachRecorder(s)
		synctest.Wait()
		for range 5 {
			srv.put("a")
		}
		synctest.Wait()
		p.histories.begin(0, "other.example.com")
		srv.restore(1)
		s.Replace(builtIn(1), noop, noop)
		time.Sleep(time.Minute)
		if record, _ := s.View().Store().Get("ns/a"); versionOr(record, "none") != "1" || p.History() != 1 {
			t.Errorf("got history %d and version %s", p.History(), versionOr(record, "none"))
		}
		if _, pending := s.Replacement(); pending {
			t.Error("the replacement is pending")
		}
		closeAndWait(s)
	})
}
