package typewatch

import (
	"testing"
	"testing/synctest"
	"time"
)

// After etcd was restored, a watch counts as comparable again once it has listed the restored state.
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
		srv.set(func() { srv.paused[Full] = true })
		srv.put("b")
		synctest.Wait()
		r.expect(t, "new object", "ns/b ->2")
		s.Replace(options(Full), nil)
		time.Sleep(minLag / 2)
		r.expect(t, "while the new watch lags: no false deletion")
		srv.set(func() { clear(srv.paused) })
		time.Sleep(time.Second)
		r.expect(t, "after it has caught up")
		closeAndWait(other)
		closeAndWait(s)
	})
}

// The same after a first list at resourceVersion 0, which only a fake server has.
func TestD3_ReplaceWaitsForALaggingWatchThatListedAnEmptyServer(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		s, other := p.Subscribe(options(Metadata), nil), p.Subscribe(options(Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		srv.put("a")
		synctest.Wait()
		r.take()
		srv.set(func() { srv.paused[Full] = true })
		srv.put("b")
		synctest.Wait()
		r.expect(t, "new object", "ns/b ->2")
		s.Replace(options(Full), nil)
		time.Sleep(minLag / 2)
		r.expect(t, "while the new watch lags: no false deletion")
		srv.set(func() { clear(srv.paused) })
		time.Sleep(time.Second)
		r.expect(t, "after it has caught up")
		closeAndWait(other)
		closeAndWait(s)
	})
}

// A replacement by an existing watch with a narrower selector, on a server that sends no bookmarks.
func TestReplace_ByAnExistingNarrowerWatchListsAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.putWith("a", x1)
		s, other := p.Subscribe(options(Full), nil), p.Subscribe(selecting(Full), nil)
		attachRecorder(s)
		synctest.Wait()
		srv.put("b")
		synctest.Wait()
		s.Replace(selecting(Full), nil)
		time.Sleep(24 * time.Hour)
		if _, pending := s.Replacement(); pending {
			t.Error("the replacement is still pending after a day")
		}
		closeAndWait(other)
		closeAndWait(s)
	})
}
