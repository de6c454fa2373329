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
	controller *DynamicController
	runs       int           // guarded by the controller's lock
	over       atomic.Bool   // set before the queue is shut down; see fairqueue.Queue.Next
	stop       chan struct{} // closed when the crew is over
	exited     sync.WaitGroup
}

// worker is one of the goroutines of a crew.
type worker struct {
	crew *crew
	// replaced is true if the worker's run has ended and another worker has taken its place. It is guarded by the lock of
	// the run whose handler the worker calls.
	replaced bool
}

// joinCrewLocked returns the controller's crew for a run that begins. It starts the workers for the first run.
func (c *DynamicController) joinCrewLocked() *crew {
	if c.crew == nil {
		c.log.Info("Starting workers", keyWorkers, c.config.Workers)
		c.crew = &crew{controller: c, stop: make(chan struct{})}
		c.queue.Restart()
		for range c.config.Workers {
			c.crew.startWorker()
		}
		c.crew.exited.Go(c.crew.resync)
		c.crew.exited.Go(c.crew.settle)
	}
	c.crew.runs++
	return c.crew
}

// leave must be called when the calls of a run have returned, or when the run no longer waits for them. The workers of
// the last run end. The returned channel is closed when they have exited, except those that have been replaced.
func (w *crew) leave() (exited <-chan struct{}) {
	c := w.controller
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.runs--; w.runs > 0 {
		return closedAfter(func() {})
	}
	c.crew = nil
	w.over.Store(true)
	close(w.stop)
	c.queue.ShutDown()
	return closedAfter(w.exited.Wait)
}

func (w *crew) startWorker() {
	w.exited.Add(1)
	go (&worker{crew: w}).start()
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
			w.crew.exited.Done()
		}
	}()
	w.work()
	returned = true
}

func (w *worker) work() {
	queue := w.crew.controller.queue
	for !w.replaced {
		id, by, wait, shutdown := queue.Next(&w.crew.over)
		if shutdown {
			return
		}
		w.process(id, by, wait)
	}
}

// process reconciles an object in the run in which it was handed out, unless that run is over.
func (w *worker) process(id ObjectIdentifiers, by served, wait fairqueue.Wait[ObjectIdentifiers]) {
	if !by.run.beginCall(w) {
		// Reconcile the object in the next run. Without a delay, workers would spin until the queue's group is stopped.
		by.reg.addAfter(CauseInterrupted|CauseKind(wait.Cause.Kinds), id.NamespacedKey,
			min(interruptedDelay, w.crew.controller.config.MaxRetryDelay))
		w.crew.controller.queue.Done(id)
		return
	}
	defer by.run.endCall(w)
	made := by.reg.beginCall(by.run, id.NamespacedKey, wait.Cause)
	defer w.crew.controller.finish(id, by.run, made) // also if the handler calls runtime.Goexit
	if made != nil {
		by.reg.reconcile(made, id, wait.For)
	}
}

// settle ends the waits for own writes, until the crew is over.
func (w *crew) settle() { w.controller.settling.work(w.stop) }

// resync adds every object to the queue about once per resync period, until the crew is over. It sends no requests.
func (w *crew) resync() {
	period := w.controller.config.ResyncPeriod
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
			for _, reg := range w.controller.servedByRuns() {
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
