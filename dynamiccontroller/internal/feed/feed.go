package feed

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/shards"
)

// Feed holds the subscriptions of a served type; see the package documentation. Its methods are safe for concurrent
// use.
type Feed struct {
	// activity is that of all subscriptions.
	activity *typewatch.Activity
	target   Target
	log      logr.Logger
	primary  *typewatch.Subscription
	options  atomic.Pointer[Options] // in effect; written under mu
	ended    chan struct{}           // closed when the feed is closed and nothing of it is running

	effects sync.Mutex // held while a swap takes effect, so that swaps do so in order; taken before mu

	mu sync.Mutex // guards the fields below, and the fields of swaps, secondaries and initial syncs
	// changes holds the pending changes, starting with the current one. They are applied in the background, because
	// applying a change can wait for functions of the feed's own sources.
	changes     []change
	newest      *swap // the last swap that was requested
	swap        *swap // the swap that is in progress, or nil
	secondaries map[Key]*secondary
	lifetime    context.Context // context of the event handlers; nil while the feed is detached
	initialSync *initialSync    // nil if the target is not paused by the feed
	tasks       int             // number of goroutines
	closed      bool
}

// New returns a feed for a type. It subscribes to the objects of the primary source at once, and to those of the
// secondaries when [Feed.Start] is called. If active is false, the caches stay empty until [Feed.SetActive] is called.
func New(
	pool *typewatch.Pool, log logr.Logger, target Target, options *Options, active bool, shard shards.Shard,
) *Feed {
	f := &Feed{
		activity: pool.NewActivity(active, shard), target: target, log: log, newest: newSwap(options),
		ended: make(chan struct{}), secondaries: map[Key]*secondary{},
	}
	f.options.Store(options)
	f.newest.state = swapDone
	close(f.newest.settled)
	f.primary = f.activity.Subscribe(options.Primary.options(), nil)
	return f
}

// Start subscribes to the objects of the secondaries. The returned channel is closed when it has been done.
func (f *Feed) Start() (done <-chan struct{}) {
	sources := f.options.Load().Secondaries
	return f.apply(change{keys: keysOf(sources), f: func() { _ = f.addSecondaries(sources, false, Caller{}) }})
}

// SetActive determines whether the feed's sources are watched. While they are not, the caches are empty, and a swap
// takes effect at once. Watches with a bucket label are narrowed to the shard, which must contain the type; see
// [typewatch.Activity]. SetActive does not block. The function wait waits until the goroutines of watches that the feed
// has left have ended. The feed can be attached or detached.
func (f *Feed) SetActive(active bool, shard shards.Shard) (wait func()) {
	return f.activity.Set(active, shard)
}

// Attach starts the delivery of keys to the target: first all objects in the caches, and then those that change. It
// calls begin, which returns the context that is passed to the functions of the sources, or nil if the run is already
// over. The target must be paused before. The initial sync also waits for the other subscriptions, for each of which
// [Feed.Finish] must be called, during begin or later. The returned channel is closed when the feed is attached.
func (f *Feed) Attach(others []*typewatch.Subscription, begin func() context.Context) (done <-chan struct{}) {
	return f.apply(change{f: func() { f.attach(others, begin) }})
}

func (f *Feed) attach(others []*typewatch.Subscription, begin func() context.Context) {
	f.mu.Lock()
	secondaries := slices.Collect(maps.Values(f.secondaries))
	subs := slices.Clone(others)
	for _, sec := range secondaries {
		subs = append(subs, sec.sub)
	}
	for _, sec := range secondaries { // a call to delivered can have been late
		sec.synced, sec.callers = false, nil
	}
	if !f.closed {
		f.beginInitialSyncLocked(subs)
	}
	f.mu.Unlock()
	ctx := begin()
	f.mu.Lock()
	if f.closed || ctx == nil {
		f.initialSync.stopLocked()
		f.initialSync = nil
		f.mu.Unlock()
		return
	}
	f.lifetime = ctx
	f.mu.Unlock()
	for _, sec := range secondaries {
		f.attachSecondary(ctx, sec)
	}
	for _, sub := range others {
		f.observeCurrent(sub)
	}
	f.primary.Attach(f.eventHandler(ctx))
}

func (f *Feed) isAttachedLocked() bool { return f.lifetime != nil && !f.closed }

// Detach stops the delivery. The returned channel is closed when no function of a source is running for this feed.
func (f *Feed) Detach() (done <-chan struct{}) {
	return f.apply(change{f: func() {
		var detached sync.WaitGroup
		subs, callers := f.end(func() { f.lifetime = nil })
		for _, sub := range subs { // at the same time, because each can wait for functions
			detached.Go(sub.Detach)
		}
		f.target.AddCallers(callers) // those that are not in the cache are kept for the next run
		detached.Wait()
	}})
}

// Close ends all subscriptions. It does not wait for functions of the sources that are running; use Ended for that.
func (f *Feed) Close() {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return
	}
	f.tasks++
	f.mu.Unlock()
	defer f.release()
	subs, _ := f.end(func() { f.closed = true })
	for _, sub := range subs {
		f.endSubscription(sub)
	}
}

// Ended returns a channel that is closed after a call to Close, once nothing of the feed is running.
func (f *Feed) Ended() <-chan struct{} { return f.ended }

// end ends the initial sync, calls update while the feed is locked, and returns all subscriptions, and all callers that
// wait for one of them.
func (f *Feed) end(update func()) (all []*typewatch.Subscription, callers []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	update()
	f.initialSync.stopLocked()
	f.initialSync = nil
	all = append(all, f.primary)
	for _, sec := range f.secondaries {
		callers = slices.AppendSeq(callers, maps.Keys(sec.callers))
		sec.synced, sec.callers = false, nil
		all = append(all, sec.sub)
	}
	return all, callers
}

// endSubscription closes a subscription. The feed does not end until the subscription has ended.
func (f *Feed) endSubscription(sub *typewatch.Subscription) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.backgroundLocked(func() {
		sub.Close()
		<-sub.Ended()
	})
}

// AddIndexes adds the indexes whose names the primary subscription does not have. A swap that begins later replaces
// them. The returned channel is closed when they have been added.
func (f *Feed) AddIndexes(indexes *typewatch.Indexes) (done <-chan struct{}) {
	return f.apply(change{f: func() { f.primary.AddIndexes(indexes) }})
}

// Primary returns the subscription to the type's own objects.
func (f *Feed) Primary() *typewatch.Subscription { return f.primary }

// Store returns the cache of the type's own objects.
func (f *Feed) Store() *objects.Store { return f.primary.View().Store() }

// Secondary returns the subscription with the key, or nil.
func (f *Feed) Secondary(key Key) *typewatch.Subscription {
	f.mu.Lock()
	defer f.mu.Unlock()
	if sec := f.secondaries[key]; sec != nil {
		return sec.sub
	}
	return nil
}

// Secondaries returns the subscriptions of all secondaries.
func (f *Feed) Secondaries() map[Key]*typewatch.Subscription {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[Key]*typewatch.Subscription, len(f.secondaries))
	for key, sec := range f.secondaries {
		all[key] = sec.sub
	}
	return all
}

// Subscriptions returns the subscriptions to the type's own objects and to those of its secondaries.
func (f *Feed) Subscriptions() []*typewatch.Subscription {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := append(make([]*typewatch.Subscription, 0, len(f.secondaries)+1), f.primary)
	for _, sec := range f.secondaries {
		all = append(all, sec.sub)
	}
	return all
}

// HasSynced reports whether the cache of the type's own objects is complete for the latest options.
func (f *Feed) HasSynced() bool {
	return typewatch.IsClosed(f.newestSwap().settled) && f.primary.View().HasSynced()
}

// Synced returns a channel that is closed at the next step towards HasSynced: when the latest swap has taken effect, or
// the cache is complete.
func (f *Feed) Synced() <-chan struct{} {
	if settled := f.newestSwap().settled; !typewatch.IsClosed(settled) {
		return settled
	}
	return f.primary.Synced()
}

// Newest returns the latest options, which may not be in effect yet.
func (f *Feed) Newest() *Options { return f.newestSwap().next }

func (f *Feed) newestSwap() *swap {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.newest
}
