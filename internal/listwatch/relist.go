package listwatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/internal/protect"
)

// RelistStore is a Store that can receive a list while a watch is open. A Loop with such a store resumes the watch at
// once after it was closed early, and lists next to it; see earlyRelists. With other stores, the Loop lists first.
type RelistStore interface {
	Store
	// BeginRelist is called before a list that is requested while a watch is open. Changes continue to be applied.
	// BeginRelist and [Relist].End are not called at the same time as Apply.
	BeginRelist() Relist
}

// Relist receives a list while a watch is open. All methods are called by one goroutine, which is not that of Loop.Run.
type Relist interface {
	// Collect adds an item to the list.
	Collect(item runtime.Object)
	// End replaces the objects with the items, except those that the watch has changed after the version of the list.
	// From then on, the store ignores events up to this version.
	End(resourceVersion string)
	// Abort is called instead of End if the list is not complete.
	Abort()
}

const (
	minRelistDelay = time.Second      // before a relist that has failed is requested again
	maxRelistDelay = 30 * time.Second // the delay doubles up to this value
)

// relisting is a list next to an open watch. While its goroutine exists, the goroutine of Run does not use
// earlyRelists.
type relisting struct {
	loop    *Loop
	store   RelistStore
	options RequestOptions
	done    chan struct{}
}

// startRelist starts the goroutine that lists next to the watch whose context is given, when the limiters allow it. The
// returned function ends the goroutine and waits for it.
func (l *Loop) startRelist(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	r := &relisting{l, l.store.(RelistStore), l.requestOptions(), make(chan struct{})}
	go func() {
		defer close(r.done)
		r.run(ctx)
	}()
	return func() {
		cancel()
		<-r.done
	}
}

// run lists until a list is complete or ctx is cancelled.
func (r *relisting) run(ctx context.Context) {
	l := r.loop
	for retry := minRelistDelay; r.wait(ctx); retry = min(2*retry, maxRelistDelay) {
		err := r.request(ctx)
		switch {
		case err == nil:
			l.memory.early.reset()
			return
		case ctx.Err() != nil:
			l.memory.early.cut()
			return
		}
		l.options.Log.V(1).Info("Request failed", "request", "list next to the watch", "error", err.Error())
		l.health.failed(problem{err: err})
		switch kindOf(listRequest, err) {
		case tooLarge, expired, outdated: // the history of the versions may have gone back
			l.control.interrupt(historyBegan)
			return
		case notAcceptable:
			r.options.JSON = true
		}
		if !sleep(ctx, retry) {
			return
		}
	}
}

// wait waits until the limiters allow the relist. It returns false if ctx is cancelled.
func (r *relisting) wait(ctx context.Context) bool {
	for {
		delay, due := r.loop.memory.early.wait(time.Now())
		switch {
		case !due || ctx.Err() != nil:
			return false
		case delay <= 0:
			return true
		case !sleep(ctx, delay):
			return false
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// request lists once. Panics are returned as errors.
func (r *relisting) request(ctx context.Context) (err error) {
	mistake := protect.Isolate(func() { err = r.list(ctx) })
	if mistake != nil {
		return mistake
	}
	return err
}

func (r *relisting) list(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l := r.loop
	l.storing.Lock()
	relist, oldest := r.store.BeginRelist(), l.oldestVersion()
	l.storing.Unlock()
	complete := false
	defer func() {
		if !complete {
			l.storing.Lock()
			defer l.storing.Unlock()
			relist.Abort()
		}
	}()
	l.health.relisting(true)
	defer l.health.relisting(false)
	dog := newWatchdog(cancel, listLimit, stalled)
	defer dog.stop()
	options := r.options
	options.ResourceVersion, options.ResourceVersionMatch = oldest, metav1.ResourceVersionMatchNotOlderThan
	received := newPages()
	for {
		before := l.progress.items.Load()
		m, err := l.page(ctx, dog, options, func(item runtime.Object) error {
			l.progress.items.Add(1)
			relist.Collect(item)
			return nil
		})
		if err == nil && m.Continue != "" {
			err = received.next(ctx, m.Continue, l.progress.items.Load()-before)
		}
		if limit, ok := errors.AsType[*limitError](context.Cause(ctx)); ok {
			return limit
		}
		if err != nil {
			return err
		}
		if m.Continue == "" {
			dog.pause()
			if isNewer(oldest, m.ResourceVersion) {
				return fmt.Errorf("%w: got version %s, want %s or later", errOutdated, m.ResourceVersion, oldest)
			}
			l.storing.Lock()
			defer l.storing.Unlock()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			relist.End(m.ResourceVersion)
			complete = true
			return nil
		}
		options.ResourceVersion, options.ResourceVersionMatch, options.Continue = "", "", m.Continue
	}
}
