package dynamiccontroller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

// TypeState is the state of a type's watch.
type TypeState string

// The states of a type. There are no other values. A type that starts without errors goes through TypeStopped,
// TypeSyncing and TypeSynced, in that order.
const (
	// TypeStopped means that neither Run nor RunWatches is running, or that they run only for shards to which the type
	// does not belong; see [TypeStatus].OtherShard.
	TypeStopped TypeState = "Stopped"
	// TypeSyncing means that the watch has started but its first list since then is not complete yet.
	TypeSyncing TypeState = "Syncing"
	// TypeSynced means that the cache holds the objects, and that the watch that keeps the cache up to date is open, or
	// was until less than five seconds ago. After the first list of a run, the watch has five seconds to open. A type
	// that cannot be watched is listed every 30 seconds instead, and is synced while its last complete list is younger
	// than a minute.
	TypeSynced TypeState = "Synced"
	// TypeNotFound means that the API server does not serve the type (404), or that a type event reported it as gone.
	TypeNotFound TypeState = "NotFound"
	// TypeForbidden means that the client is not allowed to list or watch the type (401, 403).
	TypeForbidden TypeState = "Forbidden"
	// TypeFailing means that requests fail for another reason, or that the watch is not open and the API server does not
	// respond. In the states TypeNotFound, TypeForbidden and TypeFailing, the cache is kept, and requests are retried with
	// a backoff of up to 30 seconds, or after the delay that the API server asks for, up to a minute.
	TypeFailing TypeState = "Failing"
)

// WatchStatus is the status of a type's current watch. [TypeStatus] and [SecondaryStatus] embed it.
type WatchStatus struct {
	State TypeState
	// Message is the error from the API server, if State reports a failure. If State has been TypeSyncing for ten seconds,
	// Message describes the progress of the first list.
	Message string
	Since   time.Time // when State last changed
	Synced  bool      // the cache holds a complete list, which can be out of date if State reports a failure

	ListingSince time.Time // when the current list began; zero if no list is in progress
	ListItems    int       // the items of that list that have arrived

	WatchOpenSince time.Time // zero if the watch is not open
	LastEvent      time.Time // when the last event, bookmark or list arrived; zero before the first one
	NextAttempt    time.Time // when the next request is due; zero if no delay is in progress
	LastProblem    string    // the last error, even if it is over
	LastProblemAt  time.Time // when it occurred
	Polled         bool      // the type cannot be watched, and is listed every 30 seconds instead

	// Changes is the number of changes to objects that the watch has received. It belongs to the watch: after the type
	// has moved to another watch, it can be larger or smaller than before.
	Changes int64
	Objects int   // number of objects in the cache
	Bytes   int64 // approximate memory used by these objects
	// Unusable counts objects that were received but cannot be used, for example because they have no name, because a
	// label is not a string, or because their JSON has a depth of more than 10,000. With CacheFull, all metadata is
	// checked as well, and a handler is not called for an object whose generation is a string. An unusable object does not
	// affect other objects, and it does not count as deleted: the cache keeps its last usable state, if any.
	//
	// If neither the name nor the UID of an item in a list can be read, the list deletes nothing, and a replacement waits.
	// The list is repeated after a minute, later less often, until all its items can be identified. If a replacement
	// caches more of each object, or has a transform, an unusable object counts as deleted until it can be used.
	//
	// The first unusable object of a watch is logged at V(0), the others at V(1).
	Unusable        int
	UnusableMessage string // one of these objects, and why it cannot be used
	// Replacement describes a watch with different options that will replace the current one once it has synced. Until
	// then, listers and event handlers use the current watch. It is nil if no replacement is pending.
	Replacement *ReplacementStatus
}

// ReplacementStatus is the status of a watch that will replace the current one.
type ReplacementStatus struct {
	State   TypeState
	Message string    // the error from the API server, if State reports a failure
	Since   time.Time // when State last changed
}

// TypeStatus is the status of a served type.
type TypeStatus struct {
	GVR         schema.GroupVersionResource
	WatchStatus // of the watch for the type's own objects
	// OtherShard is true if Run or RunWatches is active, but only for shards to which the type does not belong, or if none
	// is active and the last one was for a shard. The type is then not watched, its state is TypeStopped, and its caches
	// are empty.
	OtherShard bool

	Live       int           // objects waiting because of events, retries that are due, or Enqueue
	Background int           // objects waiting because of an initial list, a swap, a promotion or a resync
	Oldest     time.Duration // how long the object at the head of the queue has waited
	Delayed    int           // objects waiting for a retry or a RequeueAfter
	Running    int           // running calls to the handler
	Settling   int           // objects that wait until the caches contain the writes of their last call

	// WriteLags counts the waits for own writes that have reached Config.MaxWriteLag. The first one is logged.
	WriteLags int64

	Failing      int            // objects that will be retried because their last reconcile failed
	Parked       int            // objects that failed too often, or with a Terminal error
	NewestParked []ParkedObject // the most recently parked objects, at most ten, oldest first

	// MalformedKeys counts the keys from Enqueue and MapFuncs that were ignored because they are not in the format of
	// ObjectIdentifiers.NamespacedKey. The first one is logged at V(0), the others at V(1).
	MalformedKeys int

	// RunningFunction is the predicate, MapFunc or index function of the type that has been running for the longest time.
	// It is nil if none has been running for more than a second. Until a predicate or MapFunc returns, the watch to which
	// it belongs triggers no reconciles. Until an index function returns, calls to ByIndex for the index do not return.
	RunningFunction *RunningFunction

	Secondaries []SecondaryStatus // the watches added by Owns and Watches, sorted by key
}

// RunningFunction is a predicate, MapFunc or index function (see [WithIndex]) that is running.
type RunningFunction struct {
	Function string    // for example "MapFunc of Watches(pods.v1)", or "predicate" for that of the type itself
	Since    time.Time // when the function was called
}

// minRunningFunction is the time after which a running function is reported.
const minRunningFunction = time.Second

// SecondaryStatus is the status of a watch that was added to a served type with [Owns] or [Watches].
type SecondaryStatus struct {
	WatchKey
	WatchStatus
}

// ParkedObject is an object that failed too often, or with a [Terminal] error. See [Handler] for when it is retried.
type ParkedObject struct {
	Key       string    // "namespace/name", or "name" for a cluster-scoped object
	Failures  int       // consecutive failures
	LastError string    // text of the last error, at most 1 KiB
	Since     time.Time // when the object was parked
}

const maxParkedDetails = 10

// Status returns a snapshot of the status of each served type, sorted by name. It sends no requests. To read the status
// of a single type, use TypeStatusOf.
func (c *DynamicController) Status() []TypeStatus {
	regs := c.registry.registered()
	statuses := make([]TypeStatus, 0, len(regs))
	for reg, watched := range regs {
		statuses = append(statuses, reg.status(watched))
	}
	slices.SortFunc(statuses, func(a, b TypeStatus) int { return strings.Compare(nameOf(a.GVR), nameOf(b.GVR)) })
	return statuses
}

// TypeStatusOf returns a snapshot of the status of a served type. If the type is not served, the error is
// [ErrNotServed]. It sends no requests, and its cost does not depend on the number of types.
func (c *DynamicController) TypeStatusOf(gvr schema.GroupVersionResource) (TypeStatus, error) {
	reg, watched, err := c.registry.lookUp(gvr)
	if err != nil {
		return TypeStatus{}, err
	}
	return reg.status(watched), nil
}

func (r *registration) status(watched bool) TypeStatus {
	queued := r.group.Stats()
	status := TypeStatus{
		GVR: r.gvr, WatchStatus: watchStatusOf(r.feed.Primary()), OtherShard: !watched,
		Live: queued.Live, Background: queued.Background, Oldest: queued.Oldest, Delayed: queued.Delayed,
		Settling: queued.Settling, WriteLags: r.writeLags.Load(),
	}
	status.addRunning(r.feed.Primary(), "")
	for asFeed, sub := range r.feed.Secondaries() {
		key := watchKeyOf(asFeed)
		status.Secondaries = append(status.Secondaries, SecondaryStatus{key, watchStatusOf(sub)})
		status.addRunning(sub, " of "+key.name())
	}
	slices.SortFunc(status.Secondaries, func(a, b SecondaryStatus) int { return a.compare(b.WatchKey) })
	failing, parked, newest := r.attempts.Summary(maxParkedDetails)
	status.Failing, status.Parked = failing, parked
	for _, p := range newest {
		status.NewestParked = append(status.NewestParked, ParkedObject(p))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	status.Running, status.MalformedKeys = len(r.running), r.malformedKeys
	return status
}

// addRunning sets RunningFunction if the subscription's function is the oldest one so far.
func (s *TypeStatus) addRunning(sub *typewatch.Subscription, source string) {
	function, since := sub.Busy()
	if since.IsZero() || time.Since(since) <= minRunningFunction ||
		s.RunningFunction != nil && !since.Before(s.RunningFunction.Since) {
		return
	}
	s.RunningFunction = &RunningFunction{Function: function + source, Since: since}
}

func watchStatusOf(sub *typewatch.Subscription) WatchStatus {
	state, view := sub.State(), sub.View()
	status := WatchStatus{
		State:   TypeState(state.Phase),
		Message: state.Message,
		Since:   state.Since,
		Synced:  view.HasSynced(),

		ListingSince: state.ListingSince,
		ListItems:    state.ListItems,

		WatchOpenSince: state.Open,
		LastEvent:      state.LastEvent,
		NextAttempt:    state.NextAttempt,
		LastProblem:    state.LastProblem,
		LastProblemAt:  state.ProblemAt,
		Polled:         state.Lacks.Has(listwatch.NoWatch),

		Changes: view.Changes(),
		Objects: view.Store().Len(),
		Bytes:   view.Store().Size(),
	}
	unusable := view.Unusable()
	status.Unusable, status.UnusableMessage = unusable.Objects, unusable.Message
	if next, pending := sub.Replacement(); pending {
		status.Replacement = &ReplacementStatus{State: TypeState(next.Phase), Message: next.Message, Since: next.Since}
	}
	return status
}

// AllInformerHaveSynced reports whether the cache of every served type holds a complete list. It returns false if any
// type cannot sync, so it should not be used as a readiness check. It ignores watches on owned and watched types, and
// types for which [TypeStatus].OtherShard is true.
func (c *DynamicController) AllInformerHaveSynced() bool {
	for reg, watched := range c.registry.registered() {
		if watched && !reg.feed.HasSynced() {
			return false
		}
	}
	return true
}

// WaitForInformersSync waits until every currently served type has synced or is no longer served. It ignores types for
// which [TypeStatus].OtherShard is true. It returns false if stopCh is closed first. To wait for a single type, or to
// wait with a context, use WaitForGVRSync.
func (c *DynamicController) WaitForInformersSync(stopCh <-chan struct{}) bool {
	for reg := range c.registry.registered() {
		if !c.waitForSync(reg, stopCh, true) {
			return false
		}
	}
	return true
}

// WaitForGVRSync waits until the type has synced with the options passed to the latest call to StartServingGVK. It
// returns [ErrNotServed] if the type is not served or is stopped in the meantime. It also waits while the type belongs
// to a shard that this process neither serves nor watches. If ctx is cancelled first, the error wraps
// context.Cause(ctx) and describes the type's state. If the type belongs to another shard, the error also wraps
// [ErrOtherShard].
func (c *DynamicController) WaitForGVRSync(ctx context.Context, gvr schema.GroupVersionResource) error {
	for {
		reg, err := c.registry.registrationOf(gvr)
		if err != nil {
			return err
		}
		if !c.waitForSync(reg, ctx.Done(), false) {
			return fmt.Errorf("wait for %s to sync: %w; %w", nameOf(gvr), context.Cause(ctx), c.whyUnsynced(reg))
		}
		if !typewatch.IsClosed(reg.stopped) {
			return nil
		}
	}
}

// whyUnsynced describes the state of a type that has not synced.
func (c *DynamicController) whyUnsynced(reg *registration) error {
	if elsewhere, _ := c.registry.isElsewhere(reg); elsewhere {
		return ErrOtherShard
	}
	primary := reg.feed.Primary()
	state, replaced := primary.Replacement()
	if !replaced {
		state = primary.State()
	}
	return fmt.Errorf("state %s since %s: %s",
		TypeState(state.Phase), state.Since.Format(time.RFC3339), cmp.Or(state.Message, "no error so far"))
}

// waitForSync waits until a registration has synced with its latest options or is closed. It returns false if stop
// closes first. If the type belongs to another shard, waitForSync returns true if ignoreOthers is true, and waits
// otherwise.
func (c *DynamicController) waitForSync(reg *registration, stop <-chan struct{}, ignoreOthers bool) bool {
	for {
		elsewhere, changed := c.registry.isElsewhere(reg)
		synced := reg.feed.Synced() // before HasSynced, so that no step is missed
		switch {
		case elsewhere && ignoreOthers, !elsewhere && reg.feed.HasSynced():
			return true
		case elsewhere:
			synced = nil
		}
		select {
		case <-synced:
		case <-changed:
		case <-reg.stopped:
			return true
		case <-stop:
			return false
		}
	}
}
