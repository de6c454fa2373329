package dynamiccontroller

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/resync"
)

// crew is the set of Config.Workers goroutines that call handlers, one that performs resyncs, and one that ends the
// waits for own writes. All runs share it. It exists while at least one run does.
//
//	first run begins ─▶ workers start ─▶ Next ─▶ reconcile ─▶ Next ... ─▶ last run ends ─▶ workers exit
//	                                                │
//	                  the run ends, the call hangs ─┴─▶ a new worker replaces this one, which exits after the call
type crew struct {
	core     *core
	registry *registry
	waits    *writeWaits
	over     atomic.Bool   // set before the queue is shut down; see fairqueue.Queue.Next
	stop     chan struct{} // closed when the crew is over
	exited   sync.WaitGroup
}

// crews holds the crew of the current runs.
type crews struct {
	start func() *crew

	mu      sync.Mutex // guards the fields below
	current *crew      // nil while there is no run
	runs    int
}

// join returns the crew for a run that begins. It starts the workers for the first run, and reports whether it has.
func (c *crews) join() (joined *crew, started bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if started = c.runs == 0; started {
		c.current = c.start()
	}
	c.runs++
	return c.current, started
}

// leave must be called when the calls of a run have returned, or when the run no longer waits for them. The workers of
// the last run end. The returned channel is closed when they have exited, except those that have been replaced.
func (c *crews) leave() (exited <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs--; c.runs > 0 {
		return closedAfter(func() {})
	}
	last := c.current
	c.current = nil
	last.shutDown()
	return closedAfter(last.exited.Wait)
}

func startCrew(c *core, registry *registry, waits *writeWaits) *crew {
	w := &crew{core: c, registry: registry, waits: waits, stop: make(chan struct{})}
	c.queue.Restart()
	for range c.config.Workers {
		w.startWorker()
	}
	w.exited.Go(w.resync)
	w.exited.Go(w.endWaits)
	return w
}

// shutDown ends the workers and the queue.
func (w *crew) shutDown() {
	w.over.Store(true)
	close(w.stop)
	w.core.queue.ShutDown()
}

func (w *crew) startWorker() {
	w.exited.Add(1)
	go (&worker{queue: w.core.queue, waits: w.waits, over: &w.over, exit: w.exited.Done}).start()
}

// replaceWorker starts another worker for one whose call has outlived its run. That one exits when its call returns.
func (w *crew) replaceWorker() {
	w.startWorker()
	w.exited.Done()
}

// worker is one of the goroutines of a crew.
type worker struct {
	queue    *queue
	waits    *writeWaits
	over     *atomic.Bool // the crew is over
	exit     func()       // reports to the crew that the worker has exited
	replaced bool         // the worker's run has ended, and another worker has taken its place
}

// start takes items from the queue until the crew is over or the worker has been replaced. If a handler calls
// runtime.Goexit, start continues in another goroutine.
func (w *worker) start() {
	returned := false
	defer func() {
		switch {
		case w.replaced:
		case !returned:
			go w.start()
		default:
			w.exit()
		}
	}()
	w.work()
	returned = true
}

func (w *worker) work() {
	for !w.replaced {
		id, by, wait, shutdown := w.queue.Next(w.over)
		if shutdown {
			return
		}
		w.process(id, by, wait)
	}
}

// process reconciles an object in the run in which it was handed out, unless that run has ended or is draining.
func (w *worker) process(id ObjectIdentifiers, by served, wait fairqueue.Wait[ObjectIdentifiers]) {
	if !by.run.beginCall(w) {
		// Reconcile the object in the next run, or when the run is resumed. Without a delay, workers would spin until the
		// queue's group is stopped or drained.
		by.reg.addInterrupted(id.NamespacedKey, CauseKind(wait.Cause.Kinds))
		w.queue.Done(id)
		return
	}
	defer func() { w.replaced = by.run.endCall(w) }()
	made := by.reg.beginCall(by.run, id.NamespacedKey, wait.Cause)
	defer w.waits.finish(id, by.run, made) // also if the handler calls runtime.Goexit
	if made != nil {
		by.reg.reconcile(made, id, wait.For)
	}
}

// endWaits ends the waits for own writes, until the crew is over.
func (w *crew) endWaits() { w.waits.work(w.stop) }

// resync adds every object to the queue about once per resync period, until the crew is over. It sends no requests.
func (w *crew) resync() {
	period := w.core.config.ResyncPeriod
	if period < 0 {
		return
	}
	ticker := time.NewTicker(resync.Tick(period))
	defer ticker.Stop()
	seed, schedules := maphash.MakeSeed(), map[*registration]*resync.Schedule{}
	for {
		select {
		case <-w.stop:
			return
		case now := <-ticker.C:
			former := schedules
			schedules = map[*registration]*resync.Schedule{} // nothing is left of types that are not served any more
			for _, reg := range w.registry.servedByRuns() {
				if w.over.Load() { // another crew can have begun
					return
				}
				schedule := former[reg]
				if schedule == nil {
					schedule = &resync.Schedule{}
				}
				schedule.Start(seed, now)
				reg.addBackground(CauseResync, schedule.Due(now, period, reg.allKeys))
				schedules[reg] = schedule
			}
		}
	}
}
