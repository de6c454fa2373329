package typewatch

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
)

// listedWatch returns the reflector of a watch with n objects, without a goroutine.
func listedWatch(t testing.TB, p *Pool, n int) (*Subscription, *reflector) {
	t.Helper()
	s := p.Subscribe(options(Metadata), nil)
	w := s.watch().reflectors[0]
	var list []any
	for i := range n {
		list = append(list, received(t, owned(strconv.Itoa(i), "1", "x"), Metadata, true))
	}
	if err := w.Replace(list, "1"); err != nil {
		t.Fatal(err)
	}
	return s, w
}

// Subscriptions that are attached at the same time share a pass, whether or not they call user code. Each object is
// decoded once for all subscriptions of a pass.
func TestPass_IsSharedBySubscriptionsThatAttachTogether(t *testing.T) {
	p := newTestPool(newServer())
	first, w := listedWatch(t, p, 1000)
	const n = 1000
	var mu sync.Mutex
	known, decoded := 0, map[any]bool{}
	subscriptions := []*Subscription{first}
	var attaching sync.WaitGroup
	release := p.Hold()
	for i := range n {
		o := options(Metadata)
		o.Blocking = i%10 == 0
		s := p.Subscribe(o, nil)
		subscriptions = append(subscriptions, s)
		attaching.Go(func() {
			s.Attach(EventHandler{Known: func(batch []*Object) {
				mu.Lock()
				defer mu.Unlock()
				known += len(batch)
				for _, o := range batch {
					decoded[&o.Owners()[0]] = true
				}
			}, Synced: func() {}, Changed: func(Change) {}})
		})
	}
	attaching.Wait()
	if known > 0 {
		t.Errorf("%d objects were delivered before release was called", known)
	}
	release()
	for _, s := range subscriptions {
		s.settle()
	}
	if passes := w.watch.passes; passes != 1 {
		t.Errorf("%d passes for %d subscriptions, want one", passes, n)
	}
	if want := n * 1000; known != want {
		t.Errorf("%d objects were delivered, want %d", known, want)
	}
	if len(decoded) != 1000 {
		t.Errorf("owners were decoded %d times, want once for each of 1000 objects", len(decoded))
	}
	for _, s := range subscriptions {
		closeAndWait(s)
	}
}

// steppedPass begins a pass. The test performs its steps.
func steppedPass(t *testing.T, w *watch) {
	t.Helper()
	w.delivery.Lock()
	w.pass = &pass{} // prevents another goroutine from performing the pass
	w.delivery.Unlock()
	t.Cleanup(func() {
		w.delivery.Lock()
		w.pass = nil
		w.delivery.Unlock()
	})
}

// Changes during a pass are delivered after it, in order and with all states. A change is delivered once, whether or
// not the object has been delivered before.
func TestPass_DeliversChangesAfterTheExistingObjects(t *testing.T) {
	for name, leave := range map[string]func(s *Subscription){
		"a member":                         func(*Subscription) {},
		"a member that begins to block":    func(s *Subscription) { s.Update(nil, true, nil) },
		"a member that moves to a replica": func(s *Subscription) { moveTo(t, s) },
	} {
		t.Run(name, func(t *testing.T) { testChangesDuringPass(t, leave) })
	}
}

func testChangesDuringPass(t *testing.T, leave func(*Subscription)) {
	p := newTestPool(newServer())
	_, w := listedWatch(t, p, 600)
	s := p.Subscribe(options(Metadata), nil)
	steppedPass(t, w.watch)
	r := &recorder{}
	s.Attach(r.handler())
	if !w.watch.beginPass() || !w.watch.deliverChunk() {
		t.Fatal("there is no pass")
	}
	for i := range 600 {
		if err := w.Update(owned(strconv.Itoa(i), "2", "y")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Delete(owned("0", "3", "y")); err != nil {
		t.Fatal(err)
	}
	if got := r.take(); len(got) != batch {
		t.Errorf("%d events after the first chunk, want %d", len(got), batch)
	}
	leave(s)
	for w.watch.deliverChunk() {
	}
	for !s.inbox.isIdle() {
		runtime.Gosched()
	}
	expectChangesAfterExisting(t, r.take())
	s.Detach()
}

// expectChangesAfterExisting requires the rest of the existing objects, and then one change to each object.
func expectChangesAfterExisting(t *testing.T, got []string) {
	t.Helper()
	if n := slices.Index(got, "synced"); n != 600-batch {
		t.Errorf("%d events between the first chunk and Synced, want %d", n, 600-batch)
	}
	for i := range 600 {
		if change := fmt.Sprintf("ns/%d 1>2", i); i > 0 && count(got, change) != 1 {
			t.Errorf("%q was delivered %d times", change, count(got, change))
		}
	}
	if count(got, "ns/0 1>-")+count(got, "ns/0 2>-") != 1 {
		t.Error("the deletion was not delivered")
	}
}

func count(all []string, event string) (n int) {
	for _, e := range all {
		if e == event {
			n++
		}
	}
	return n
}

// moveTo moves a subscription to another watch with the same objects.
func moveTo(t *testing.T, s *Subscription) {
	t.Helper()
	from := s.watch()
	replaced := make(chan struct{})
	s.Replace(options(Full), func() { close(replaced) }, noop)
	to := s.pool.shared[Key{Selection: Selection{GVR: widgets}, Projection: Full}].watch
	var list []any
	for _, r := range from.store.All() {
		o, err := r.Decode(Metadata)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, o)
	}
	if err := to.reflectors[0].Replace(list, "3"); err != nil {
		t.Fatal(err)
	}
	<-replaced
}

// Detach ends the part of the subscription in a pass.
func TestPass_DetachedMembersReceiveNothing(t *testing.T) {
	p := newTestPool(newServer())
	_, w := listedWatch(t, p, 600)
	detached, closed, stays := p.Subscribe(options(Metadata), nil), p.Subscribe(options(Metadata), nil),
		p.Subscribe(options(Metadata), nil)
	steppedPass(t, w.watch)
	var recorders []*recorder
	for _, s := range []*Subscription{detached, closed, stays} {
		r := &recorder{}
		s.Attach(r.handler())
		recorders = append(recorders, r)
	}
	if !w.watch.beginPass() || !w.watch.deliverChunk() {
		t.Fatal("there is no pass")
	}
	detached.Detach()
	closeAndWait(closed)
	for w.watch.deliverChunk() {
	}
	for i, want := range []int{batch, batch, 601} {
		if got := len(recorders[i].take()); got != want {
			t.Errorf("subscription %d received %d events, want %d", i, got, want)
		}
	}
	detached.Attach(recorders[0].handler())
	for w.watch.beginPass() {
		for w.watch.deliverChunk() {
		}
	}
	if got := len(recorders[0].take()); got != 601 {
		t.Errorf("after Attach, the subscription received %d events, want 601", got)
	}
}
