package typewatch

import (
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
	"weak"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Each of two subscriptions switches to the other's watch while events arrive.
func TestReplace_InOppositeDirectionsDoesNotDeadlock(t *testing.T) {
	srv := newServer("a")
	p := newTestPool(srv)
	stop := p.Start()
	pinned := []*Subscription{p.Subscribe(options(Metadata), nil), p.Subscribe(options(Full), nil)}
	over := make(chan struct{})
	var users, writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; !IsClosed(over); i++ {
			srv.put(strconv.Itoa(i % 10))
			time.Sleep(50 * time.Microsecond)
		}
	})
	for i := range 4 {
		users.Go(func() {
			projections := []Projection{Metadata, Full}
			if i%2 == 0 {
				slices.Reverse(projections)
			}
			m := attachModel(t, p.Subscribe(options(projections[0]), nil))
			<-m.subscription.Synced()
			for n := range 50 {
				replaced := make(chan struct{})
				next := options(projections[(n+1)%2])
				next.Blocking = i < 2
				m.subscription.Replace(next, func() { close(replaced) }, noop)
				<-replaced
			}
			m.close()
		})
	}
	users.Wait()
	close(over)
	writer.Wait()
	for _, s := range pinned {
		closeAndWait(s)
	}
	stop()
}

// A subscription moves to a watch with a hung event handler, and does not block its current watch.
func TestS3_HungHandlerBlocksNeitherWatchOfAReplacement(t *testing.T) {
	for name, hungFirst := range map[string]bool{"by an older watch": true, "by a newer watch": false} {
		t.Run(name, func(t *testing.T) {
			srv := newServer()
			srv.putWith("a", x1)
			p := newTestPool(srv)
			stop := p.Start()
			var hung *Subscription
			if hungFirst {
				hung = p.Subscribe(blocking(selecting(Full)), nil)
			}
			moving, other := p.Subscribe(options(Full), nil), p.Subscribe(options(Full), nil)
			if !hungFirst {
				hung = p.Subscribe(blocking(selecting(Full)), nil)
			}
			<-hung.Synced()
			<-moving.Synced()
			changed, begun, hang := make(chan string, 100), make(chan struct{}), make(chan struct{})
			other.Attach(EventHandler{
				Known: func([]*Object) {}, Synced: func() {}, Changed: func(c Change) { changed <- c.Key },
			})
			other.settle()
			hung.Attach(EventHandler{
				Known: func([]*Object) { close(begun); <-hang }, Synced: func() {}, Changed: func(Change) {},
			})
			<-begun
			replaced := make(chan struct{})
			moving.Replace(selecting(Full), noop, func() { close(replaced) })
			for i := range 100 { // the replacement checks again after each event
				srv.putWith(strconv.Itoa(i), x1)
				select {
				case <-changed:
				case <-time.After(10 * time.Second):
					t.Fatal("the current watch is blocked")
				}
			}
			select {
			case <-replaced:
			case <-time.After(10 * time.Second):
				t.Error("the subscription has not moved to the watch with the hung handler")
			}
			close(hang)
			for _, s := range []*Subscription{hung, moving, other} {
				closeAndWait(s)
			}
			stop()
		})
	}
}

// A goroutine that reads while the subscription switches sees whole objects if and only if its view has the new
// options.
func TestView_IsConsistentDuringAReplacement(t *testing.T) {
	srv := newServer("a")
	p := newTestPool(srv)
	stop := p.Start()
	s := p.Subscribe(options(Metadata), nil)
	<-s.Synced()
	var readers sync.WaitGroup
	over := make(chan struct{})
	for range 2 {
		readers.Go(func() {
			for !IsClosed(over) {
				view := s.View()
				obj, known := view.Store().Get("ns/a")
				if !known {
					t.Error("the object is missing")
				}
				decoded, err := view.Decode(obj)
				u, whole := decoded.(*unstructured.Unstructured)
				if wants := view.Options().Projection == Full; err != nil || wants != whole || whole && u.Object["spec"] == nil {
					t.Errorf("projection %d: %+v, %v", view.Options().Projection, decoded, err)
					return
				}
			}
		})
	}
	for i := range 200 {
		replaced := make(chan struct{})
		s.Replace(options([]Projection{Full, Metadata}[i%2]), func() { close(replaced) }, noop)
		<-replaced
	}
	close(over)
	readers.Wait()
	closeAndWait(s)
	stop()
}

func TestReplace_KeepsNoFormerStoreInMemory(t *testing.T) {
	srv := newServer("a")
	p := newTestPool(srv)
	stop := p.Start()
	s := p.Subscribe(transformed(Full), nil)
	s.Attach((&recorder{}).handler())
	var stores []weak.Pointer[contents]
	var watches []weak.Pointer[watch]
	for range 5 {
		<-s.Synced()
		stores, watches = append(stores, weak.Make(s.View().contents)), append(watches, weak.Make(s.watch()))
		replaced := make(chan struct{})
		s.Replace(transformed(Full), func() { close(replaced) }, noop)
		<-replaced
	}
	left := func() (left int) {
		for i := range stores {
			if stores[i].Value() != nil || watches[i].Value() != nil {
				left++
			}
		}
		return left
	}
	// The stacks of a watch's goroutines refer to the watch until the goroutines have ended.
	for deadline := time.Now().Add(10 * time.Second); left() > 0 && time.Now().Before(deadline); runtime.Gosched() {
		runtime.GC()
	}
	if left() > 0 {
		t.Errorf("%d former stores are still in memory", left())
	}
	closeAndWait(s)
	stop()
}
