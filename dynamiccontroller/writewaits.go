package dynamiccontroller

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/writes"
)

// writeWaits holds the objects that wait for own writes. A goroutine of the crew checks them after each change of a
// cache. The check of an object whose cache has received nothing takes less than 0.1 microseconds.
type writeWaits struct {
	core     *core
	registry *registry // for the standalone watches

	woken chan struct{} // its capacity is one
	count atomic.Int64  // number of objects that wait

	checks sync.Mutex // held during a check, because the goroutine of a crew can end after that of the next has begun

	mu      sync.Mutex // guards waiting
	waiting []*ownWrites
}

func newWriteWaits(c *core, registry *registry) *writeWaits {
	return &writeWaits{core: c, registry: registry, woken: make(chan struct{}, 1)}
}

// wake causes a check. It does not block.
func (ws *writeWaits) wake() {
	if ws.count.Load() == 0 {
		return
	}
	select {
	case ws.woken <- struct{}{}:
	default:
	}
}

// finish is called when a handler call has returned, or was not made. It calls the queue's Done, at once or when the
// caches contain the call's writes.
func (ws *writeWaits) finish(id ObjectIdentifiers, in *run, made *call) {
	w := ws.ownWritesOf(id, in, made)
	if w == nil || !w.isMissing() || !ws.core.queue.Settle(id) {
		ws.core.queue.Done(id)
		return
	}
	ws.wait(w)
}

// ownWritesOf returns the writes of a call to the API server of the controller, or nil. It adds them to the ledger.
func (ws *writeWaits) ownWritesOf(id ObjectIdentifiers, in *run, made *call) *ownWrites {
	c := ws.core
	if made == nil || c.config.MaxWriteLag < 0 {
		return nil
	}
	all, unknown := made.writes.Take()
	all = slices.DeleteFunc(all, func(w writes.Write) bool { return !c.isServer(w.Server) })
	unknown = slices.DeleteFunc(unknown, func(t writes.Target) bool { return !c.isServer(t.Server) })
	if len(all) == 0 && len(unknown) == 0 {
		return nil
	}
	c.setHistories(all)
	written := writes.Call{Resource: id.GVR.GroupResource(), Object: id.NamespacedKey, Writes: all, Unknown: unknown}
	in.ledger.Add(written)
	w := ws.newOwnWrites(made.reg, in, id)
	w.add(written)
	return w
}

func (ws *writeWaits) newOwnWrites(reg *registration, in *run, id ObjectIdentifiers) *ownWrites {
	limit := time.Now().Add(ws.core.config.MaxWriteLag)
	return &ownWrites{reg: reg, run: in, registry: ws.registry, id: id, limit: limit}
}

// wait adds an object, which the queue must hold, until the caches contain the writes or the limit has been reached. It
// does not block.
func (ws *writeWaits) wait(w *ownWrites) {
	if ws.add(w) && len(w.unknown) > 0 {
		w.run.read(func() {
			w.readUnknown()
			ws.wake()
		})
	}
}

// hold holds back the objects of a type whose last calls have written something that a cache lacks. These calls
// were made by another leader, or before in this process. Otherwise, a handler could repeat a write, because it reads
// the state before it. The group must be paused.
func (ws *writeWaits) hold(r *run, reg *registration) {
	if ws.core.config.MaxWriteLag < 0 {
		return
	}
	written := map[string]*ownWrites{}
	for _, call := range r.ledger.CallsFor(reg.gvr.GroupResource()) {
		w := written[call.Object]
		if w == nil {
			w = ws.newOwnWrites(reg, r, ObjectIdentifiers{NamespacedKey: call.Object, GVR: reg.gvr})
			w.fromSync = true
			written[call.Object] = w
		}
		if call.Noted {
			call.Writes = slices.Clone(call.Writes)
			ws.core.setHistories(call.Writes)
		}
		w.add(call)
	}
	for key, w := range written {
		if reg.group.Hold(key) { // unless a handler for it is still running
			ws.wait(w)
		}
	}
}

// add adds an object. If its run or its type has ended, add ends the wait and returns false.
func (ws *writeWaits) add(w *ownWrites) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.run.hasEnded() || typewatch.IsClosed(w.reg.stopped) {
		w.end()
		return false
	}
	ws.waiting = append(ws.waiting, w)
	ws.count.Add(1)
	ws.wake() // something can have arrived before the object was added
	return true
}

// endOfRun ends the waits of a run that has ended.
func (ws *writeWaits) endOfRun(r *run) { ws.endOf(func(w *ownWrites) bool { return w.run == r }) }

// endOfType ends the waits of a registration that was closed.
func (ws *writeWaits) endOfType(reg *registration) {
	ws.endOf(func(w *ownWrites) bool { return w.reg == reg })
}

func (ws *writeWaits) endOf(hasEnded func(*ownWrites) bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.waiting {
		if hasEnded(w) {
			w.end()
		}
	}
	ws.removeLocked()
}

// removeLocked removes the objects that wait no more.
func (ws *writeWaits) removeLocked() {
	before := len(ws.waiting)
	// In a new slice, because a check can be reading the former one.
	kept := slices.DeleteFunc(slices.Clone(ws.waiting), func(w *ownWrites) bool { return w.over.Load() })
	ws.waiting = kept
	ws.count.Add(int64(len(kept) - before))
}

// work checks the waits until stop is closed.
func (ws *writeWaits) work(stop <-chan struct{}) {
	limit := time.NewTimer(0)
	defer limit.Stop()
	for {
		select {
		case <-ws.woken:
		case <-limit.C:
		case <-stop:
			ws.wake() // the goroutine of the next crew, which does not know the limits of this one
			return
		}
		if next, waiting := ws.check(time.Now()); waiting {
			limit.Reset(time.Until(next))
		} else {
			limit.Stop()
		}
	}
}

// check checks all waits, and returns the earliest limit of the remaining ones.
func (ws *writeWaits) check(now time.Time) (limit time.Time, waiting bool) {
	lagging, limit, waiting := ws.checkAll(now)
	lags := map[*registration]int{}
	for _, w := range lagging { // without a lock, because lags are logged
		lags[w.reg]++
		w.reg.countWriteLag(w.id.NamespacedKey, w.lacking())
	}
	for reg, n := range lags {
		go reg.reportWriteLags(n) // because other objects wait
	}
	return limit, waiting
}

// checkAll is like check. It returns the waits that have reached their limit, which it does not report.
func (ws *writeWaits) checkAll(now time.Time) (lagging []*ownWrites, limit time.Time, waiting bool) {
	ws.checks.Lock()
	defer ws.checks.Unlock()
	ws.mu.Lock()
	all := ws.waiting
	ws.mu.Unlock()
	ended := false
	for _, w := range all { // without the lock, because workers add others
		if w.check(now) {
			lagging = append(lagging, w)
		}
		ended = ended || w.over.Load()
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ended {
		ws.removeLocked()
	}
	if len(ws.waiting) == 0 {
		return lagging, limit, false
	}
	byLimit := func(a, b *ownWrites) int { return a.limit.Compare(b.limit) }
	return lagging, slices.MinFunc(ws.waiting, byLimit).limit, true
}
