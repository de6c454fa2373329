package dynamiccontroller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// TypeState is the state of a type's watch.
type TypeState string

// The states of a type. There are no other values. A type that starts without errors goes through TypeStopped,
// TypeSyncing and TypeSynced, in that order.
const (
	// TypeStopped means that neither Run nor RunWatches is running.
	TypeStopped TypeState = "Stopped"
	// TypeSyncing means that the watch has started but its first list since then is not complete yet.
	TypeSyncing TypeState = "Syncing"
	// TypeSynced means that the cache holds the objects and that a watch keeps the cache up to date.
	TypeSynced TypeState = "Synced"
	// TypeNotFound means that the API server does not serve the type (404), or that a type event reported it as gone.
	TypeNotFound TypeState = "NotFound"
	// TypeForbidden means that the client is not allowed to list or watch the type (401, 403).
	TypeForbidden TypeState = "Forbidden"
	// TypeFailing means that requests fail for another reason. In the states TypeNotFound, TypeForbidden and TypeFailing,
	// the watch is retried with a backoff of up to 30 seconds.
	TypeFailing TypeState = "Failing"
)

// WatchStatus is the status of a type's current watch. [TypeStatus] and [SecondaryStatus] embed it.
type WatchStatus struct {
	State   TypeState
	Message string    // the error from the API server, if State reports a failure
	Since   time.Time // when State last changed
	Synced  bool      // the cache holds a complete list, which can be out of date if State reports a failure
	Objects int       // number of objects in the cache
	Bytes   int64     // approximate memory used by these objects
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

	Live       int           // objects waiting because of events, retries that are due, or Enqueue
	Background int           // objects waiting because of an initial list, a swap, a promotion or a resync
	Oldest     time.Duration // how long the object at the head of the queue has waited
	Delayed    int           // objects waiting for a retry or a RequeueAfter
	Running    int           // running calls to the handler

	Failing      int            // objects that will be retried because their last reconcile failed
	Parked       int            // objects that failed too often, or with a Terminal error
	NewestParked []ParkedObject // the most recently parked objects, at most ten, oldest first

	// MalformedKeys counts the keys from Enqueue and MapFuncs that were ignored because they are not in the format of
	// ObjectIdentifiers.NamespacedKey. The first one is logged at V(0), the others at V(1).
	MalformedKeys int

	Secondaries []SecondaryStatus // the watches added by Owns and Watches, sorted by key
}

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

// ErrNotServed is returned for a type that is not served: either StartServingGVK has not been called for it, or
// StopServiceGVK has stopped it.
var ErrNotServed = errors.New("the type is not served")

// Status returns a snapshot of the status of each served type, sorted by name. It sends no requests.
func (c *DynamicController) Status() []TypeStatus {
	regs := c.registered()
	slices.SortFunc(regs, func(a, b *registration) int { return strings.Compare(nameOf(a.gvr), nameOf(b.gvr)) })
	statuses := make([]TypeStatus, 0, len(regs))
	for _, reg := range regs {
		statuses = append(statuses, reg.status())
	}
	return statuses
}

func (r *registration) status() TypeStatus {
	queued := r.group.Stats()
	status := TypeStatus{
		GVR: r.gvr, WatchStatus: watchStatusOf(r.subscriptions.primary),
		Live: queued.Live, Background: queued.Background, Oldest: queued.Oldest, Delayed: queued.Delayed,
	}
	for _, sec := range r.subscriptions.all() {
		status.Secondaries = append(status.Secondaries, SecondaryStatus{sec.key, watchStatusOf(sec.sub)})
	}
	slices.SortFunc(status.Secondaries, func(a, b SecondaryStatus) int { return a.compare(b.WatchKey) })
	status.Failing, status.Parked, status.NewestParked = r.summarizeRecords()
	r.mu.Lock()
	defer r.mu.Unlock()
	status.Running, status.MalformedKeys = len(r.running), r.malformedKeys
	return status
}

func watchStatusOf(sub *typewatch.Subscription) WatchStatus {
	state, view := sub.State(), sub.View()
	status := WatchStatus{
		State:   TypeState(state.Phase),
		Message: state.Message,
		Since:   state.Since,
		Synced:  view.HasSynced(),
		Objects: view.Store().Len(),
		Bytes:   view.Store().Size(),
	}
	if next, pending := sub.Replacement(); pending {
		status.Replacement = &ReplacementStatus{State: TypeState(next.Phase), Message: next.Message, Since: next.Since}
	}
	return status
}

// logState logs a change in the state of a watch.
func (c *DynamicController) logState(gvr schema.GroupVersionResource, s typewatch.State) {
	log, state := c.logOf(gvr), TypeState(s.Phase)
	switch state {
	case TypeForbidden:
		log.Error(nil, "Watch forbidden, will retry", keyState, state, keyMessage, s.Message)
	case TypeNotFound, TypeFailing:
		log.Info("Watch failed, will retry", keyState, state, keyMessage, s.Message)
	default:
		log.V(1).Info("Watch changed state", keyState, state)
	}
}

// AllInformerHaveSynced reports whether the cache of every served type holds a complete list. It returns false if any
// type cannot sync, so it should not be used as a readiness check. It ignores watches on owned and watched types.
func (c *DynamicController) AllInformerHaveSynced() bool {
	return !slices.ContainsFunc(c.registered(), func(r *registration) bool { return !r.subscriptions.hasSynced() })
}

// WaitForInformersSync waits until every currently served type has synced or is no longer served. It returns false if
// stopCh is closed first. To wait for a single type, or to wait with a context, use WaitForGVRSync.
func (c *DynamicController) WaitForInformersSync(stopCh <-chan struct{}) bool {
	return !slices.ContainsFunc(c.registered(), func(r *registration) bool { return !r.waitForSync(stopCh) })
}

// WaitForGVRSync waits until the type has synced with the options passed to the latest call to StartServingGVK. It
// returns [ErrNotServed] if the type is not served or is stopped in the meantime. If ctx is cancelled first, the error
// wraps context.Cause(ctx) and describes the type's state.
func (c *DynamicController) WaitForGVRSync(ctx context.Context, gvr schema.GroupVersionResource) error {
	for {
		reg, err := c.registrationOf(gvr)
		if err != nil {
			return err
		}
		if !reg.waitForSync(ctx.Done()) {
			primary := reg.subscriptions.primary
			state, replaced := primary.Replacement()
			if !replaced {
				state = primary.State()
			}
			return fmt.Errorf("wait for %s to sync: %w; state %s since %s: %s", nameOf(gvr), context.Cause(ctx),
				TypeState(state.Phase), state.Since.Format(time.RFC3339), cmp.Or(state.Message, "no error so far"))
		}
		if !typewatch.IsClosed(reg.stopped) {
			return nil
		}
	}
}

// waitForSync waits until the registration has synced with its latest options or is closed. It returns false if stop
// closes first.
func (r *registration) waitForSync(stop <-chan struct{}) bool {
	for !r.subscriptions.hasSynced() {
		var wait <-chan struct{} = r.newest.Load().over
		if typewatch.IsClosed(wait) {
			wait = r.subscriptions.primary.Synced()
		}
		select {
		case <-wait:
		case <-r.stopped:
			return true
		case <-stop:
			return false
		}
	}
	return true
}
