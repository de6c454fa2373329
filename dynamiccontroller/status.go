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

// TypeState is how the watch of a type stands.
type TypeState string

// All states of a type.
const (
	TypeStopped   = TypeState(typewatch.Stopped)   // neither Run nor RunWatches runs
	TypeSyncing   = TypeState(typewatch.Syncing)   // the first list is on its way
	TypeSynced    = TypeState(typewatch.Synced)    // the objects are in the cache and watched
	TypeNotFound  = TypeState(typewatch.NotFound)  // the API server does not serve the type, or a type event reported that it is gone
	TypeForbidden = TypeState(typewatch.Forbidden) // the client may not list or watch the type
	TypeFailing   = TypeState(typewatch.Failing)   // requests fail for another reason
)

// TypeStatus is how the serving of one type stands.
type TypeStatus struct {
	GVR     schema.GroupVersionResource
	State   TypeState
	Message string    // the API server's own words while State is a failure
	Since   time.Time // when the type came into its state
	Synced  bool      // the cache holds a whole list, a stale one perhaps
	Objects int       // in the cache

	Live       int           // objects waiting: events, retries that are due, Enqueue
	Background int           // objects waiting: initial list, promotion, resync
	Oldest     time.Duration // how long the first in line has waited
	Delayed    int           // objects waiting for a retry or a RequeueAfter
	Running    int           // handlers that run

	Failing      int            // objects whose last reconcile failed and will be retried
	Parked       int            // objects that failed too often, or terminally
	NewestParked []ParkedObject // details of those parked last, at most ten, the newest last

	// MalformedKeys counts the keys from Enqueue and MapFuncs that were ignored because they do not have the form of
	// ObjectIdentifiers.NamespacedKey. The first one is logged, the others only at V(1).
	MalformedKeys int

	Secondaries []SecondaryStatus // what is watched beside the type, in the order of names
}

// SecondaryStatus is how the watch of a type stands that another one [Owns] or [Watches].
type SecondaryStatus struct {
	GVR       schema.GroupVersionResource
	Namespace string // empty for all
	Selector  string // of labels; empty for all, "!nothing,nothing" for none
	Owned     bool   // by Owns

	State   TypeState
	Message string    // the API server's own words while State is a failure
	Since   time.Time // when the watch came into its state
	Synced  bool      // the cache holds a whole list, a stale one perhaps
	Objects int       // in the cache
}

// ParkedObject is an object that is not retried any more until something happens to it.
type ParkedObject struct {
	Key       string // "namespace/name", or "name"
	Failures  int    // in a row, the last included
	LastError string
	Since     time.Time
}

const parkedDetails = 10

// ErrNotServed is the error for a type that is not served.
var ErrNotServed = errors.New("the type is not served")

// Status tells how each served type stands, in the order of their names. It holds up no type's work.
func (c *DynamicController) Status() []TypeStatus {
	regs := c.registered()
	slices.SortFunc(regs, func(a, b *registration) int { return strings.Compare(nameOf(a.gvr), nameOf(b.gvr)) })
	statuses := make([]TypeStatus, 0, len(regs))
	for _, reg := range regs {
		statuses = append(statuses, c.statusOf(reg))
	}
	return statuses
}

func (c *DynamicController) statusOf(reg *registration) TypeStatus {
	watch, secondaries := c.needsOf(reg)
	queued := reg.group.Stats()
	state := watch.State()
	status := TypeStatus{
		GVR:        reg.gvr,
		State:      TypeState(state.Phase),
		Message:    state.Message,
		Since:      state.Since,
		Synced:     isClosed(watch.Synced()),
		Objects:    watch.Len(),
		Live:       queued.Live,
		Background: queued.Background,
		Oldest:     queued.Oldest,
		Delayed:    queued.Delayed,
	}
	for _, s := range secondaries {
		status.Secondaries = append(status.Secondaries, s.status())
	}
	slices.SortFunc(status.Secondaries, func(a, b SecondaryStatus) int {
		return cmp.Or(strings.Compare(nameOf(a.GVR), nameOf(b.GVR)), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Selector, b.Selector))
	})
	reg.mu.Lock()
	defer reg.mu.Unlock()
	status.Running = len(reg.calls)
	status.MalformedKeys = reg.malformed
	status.Failing = len(reg.failures)
	status.Parked = len(reg.parked)
	for _, p := range reg.newest {
		if _, still := reg.parked[p.Key]; still {
			status.NewestParked = append(status.NewestParked, p)
		}
	}
	return status
}

func (s *secondary) status() SecondaryStatus {
	state := s.need.State()
	return SecondaryStatus{
		GVR: s.key.gvr, Namespace: s.key.namespace, Selector: s.key.selector, Owned: s.key.owns,
		State: TypeState(state.Phase), Message: state.Message, Since: state.Since,
		Synced:  isClosed(s.need.Synced()),
		Objects: s.need.Len(),
	}
}

// AllInformerHaveSynced tells whether every served type's cache holds a whole list. It is false while a single type
// cannot sync, which is why it makes a poor readiness check. Types that are only watched beside others do not count.
func (c *DynamicController) AllInformerHaveSynced() bool {
	for _, reg := range c.registered() {
		if !isClosed(c.watchOf(reg).Synced()) {
			return false
		}
	}
	return true
}

// WaitForInformersSync waits until the types that are served now have synced, or are no longer served. It returns
// false if stopCh is closed first.
func (c *DynamicController) WaitForInformersSync(stopCh <-chan struct{}) bool {
	for _, reg := range c.registered() {
		if c.waitForSync(stopCh, reg) == interruptedWait {
			return false
		}
	}
	return true
}

// WaitForGVRSync waits until the type's cache holds a whole list with the options that it is served with by then. The
// error is [ErrNotServed] if the type is not served or no longer, and else ctx's cause with the type's state.
func (c *DynamicController) WaitForGVRSync(ctx context.Context, gvr schema.GroupVersionResource) error {
	for {
		reg, err := c.registrationOf(gvr)
		if err != nil {
			return err
		}
		switch c.waitForSync(ctx.Done(), reg) {
		case syncedNow:
			return nil
		case interruptedWait:
			state := c.watchOf(reg).State()
			return fmt.Errorf("wait for %s to sync: %w; it is %s since %s: %s", nameOf(gvr), context.Cause(ctx),
				state.Phase, state.Since.Format(time.RFC3339), orElse(state.Message, "no error so far"))
		}
	}
}

// What waiting for a registration to sync came to.
type waited uint8

const (
	syncedNow waited = iota
	stoppedServing
	interruptedWait
)

// waitForSync waits until the registration has synced or was stopped.
func (c *DynamicController) waitForSync(stop <-chan struct{}, reg *registration) waited {
	for {
		watch := c.watchOf(reg)
		select {
		case <-reg.stopped:
			return stoppedServing
		case <-watch.Synced():
			// A swap may have put another watch in its place meanwhile.
			if c.watchOf(reg) == watch {
				return syncedNow
			}
		case <-stop:
			return interruptedWait
		}
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
