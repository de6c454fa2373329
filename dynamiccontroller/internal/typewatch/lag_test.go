package typewatch

import (
	"testing"
	"testing/synctest"
	"time"
)

// requireWaitsForLag pauses the watch of whole objects, replaces the subscription's watch with it, and checks that the
// subscription keeps the old watch until the new one has caught up.
func requireWaitsForLag(t *testing.T, srv *server, s *Subscription, r *recorder) {
	t.Helper()
	srv.set(func() { srv.paused[Full] = true })
	srv.put("b")
	synctest.Wait()
	r.expect(t, "new object", "ns/b ->2")
	s.Replace(options(Full), noop, noop)
	time.Sleep(minLag / 2)
	r.expect(t, "while the new watch lags: no false deletion")
	srv.set(func() { clear(srv.paused) })
	time.Sleep(time.Second)
	r.expect(t, "after it has caught up")
}

// After etcd was restored, a watch's version can be compared with others again once the watch has listed the restored
// state.
func TestD3_ReplaceWaitsForALaggingWatchAfterARestore(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		for range 5 {
			srv.put("a")
		}
		s, other := p.Subscribe(options(Metadata), nil), p.Subscribe(options(Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		srv.restore(1)
		time.Sleep(time.Hour)
		r.take()
		requireWaitsForLag(t, srv, s, r)
		closeAndWait(other)
		closeAndWait(s)
	})
}

// The first list of a fake server can have resourceVersion 0.
func TestD3_ReplaceWaitsForALaggingWatchThatListedAnEmptyServer(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		s, other := p.Subscribe(options(Metadata), nil), p.Subscribe(options(Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		srv.put("a")
		synctest.Wait()
		r.take()
		requireWaitsForLag(t, srv, s, r)
		closeAndWait(other)
		closeAndWait(s)
	})
}

// The replacement is an existing watch with a narrower selector, and the server sends no bookmarks.
func TestReplace_ByAnExistingNarrowerWatchListsAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.putWith("a", x1)
		s, other := p.Subscribe(options(Full), nil), p.Subscribe(selecting(Full), nil)
		attachRecorder(s)
		synctest.Wait()
		srv.put("b")
		synctest.Wait()
		s.Replace(selecting(Full), noop, noop)
		time.Sleep(24 * time.Hour)
		if _, pending := s.Replacement(); pending {
			t.Error("the replacement is still pending after a day")
		}
		closeAndWait(other)
		closeAndWait(s)
	})
}
