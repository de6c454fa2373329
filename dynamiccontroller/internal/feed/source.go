package feed

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// Key identifies a secondary within a feed. It describes what the secondary watches and, in part, how a change to an
// object is turned into keys; see dynamiccontroller.WatchKey.
type Key struct {
	typewatch.Selection
	Owned      bool
	EveryOwner bool
}

// Source describes objects that are watched, and how a change to one of them is turned into keys. It is immutable. Each
// object that a subscription delivers carries the source under which it was stored; see [typewatch.Object].
type Source struct {
	Name  string            // of the watch, for logs, such as "pods.v1"
	Watch typewatch.Options // without Value and Blocking, which the feed sets
	// Accepts, if not nil, reports whether a change is processed. For a new object, before is nil. For a deleted object,
	// after is nil.
	Accepts func(e Environment, before, after *typewatch.Object) bool
	// Targets returns the keys of the objects to reconcile, which can be malformed. If it is nil, the owners of the object
	// are reconciled: its controller or, if EveryOwner is set, all its owners. It is not used for the primary source.
	Targets func(e Environment, object *typewatch.Object) []string
	// Owned and EveryOwner are part of the key. They are not used for the primary source.
	Owned, EveryOwner bool
}

// Key returns the key of a secondary source.
func (s *Source) Key() Key { return Key{s.Watch.Selection, s.Owned, s.EveryOwner} }

// options returns the options of a subscription.
func (s *Source) options() typewatch.Options {
	options := s.Watch
	options.Value, options.Blocking = s, s.blocks()
	return options
}

// update makes a subscription that keeps its watch use the source, but with the given indexes.
func (s *Source) update(sub *typewatch.Subscription, indexes *typewatch.Indexes) {
	sub.Update(s, s.blocks(), indexes)
}

// blocks reports whether changes are passed to user code.
func (s *Source) blocks() bool { return s.Accepts != nil || s.Targets != nil }

// Subscribe returns a subscription that belongs to no feed. For observe, see [typewatch.Pool.Subscribe].
func Subscribe(pool *typewatch.Pool, source *Source, observe func(typewatch.State)) *typewatch.Subscription {
	return pool.Subscribe(source.options(), observe)
}

// sourceOf returns the source under which an object was stored.
func sourceOf(object *typewatch.Object) *Source { return object.View.Value().(*Source) }

// Environment is passed to the functions of a source. These must use Call to call user code.
type Environment struct {
	Context context.Context
	Log     logr.Logger
	sub     *typewatch.Subscription
}

// NewEnvironment returns an environment for the functions of a subscription's source.
func NewEnvironment(ctx context.Context, log logr.Logger, sub *typewatch.Subscription) Environment {
	return Environment{Context: ctx, Log: log, sub: sub}
}

// during returns an environment for the functions of a source that are called because of a change; see [ChangeFrom].
func (e Environment) during(source *Source, c typewatch.Change) Environment {
	if source.Targets != nil {
		e.Context = &changeContext{e.Context, c}
	}
	return e
}

// changeContext carries the change because of which a function is called.
type changeContext struct {
	context.Context

	change typewatch.Change
}

type changeKey struct{}

// Value returns the change for its key.
func (c *changeContext) Value(key any) any {
	if key == (changeKey{}) {
		return &c.change
	}
	return c.Context.Value(key)
}

// ChangeFrom returns the change that a context carries, or nil.
func ChangeFrom(ctx context.Context) *typewatch.Change {
	c, _ := ctx.Value(changeKey{}).(*typewatch.Change)
	return c
}

// Call calls f, and reports whether f returned normally. If f panics or calls runtime.Goexit, Call logs it with the
// message. Until f returns, the subscription reports that the function is running; see [typewatch.Subscription.Busy].
// The first call to runtime.Goexit ends the goroutine, and the inbox of the subscription makes the call again.
func (e Environment) Call(function, message string, f func()) (returned bool) {
	mistake := e.sub.Call(function, f)
	if mistake != nil {
		e.Log.Error(mistake, message, "stack", string(mistake.Stack))
	}
	return mistake == nil
}

// sameWatch reports whether s and other can use the same watch. Functions cannot be compared, so sameWatch returns
// false if one of them has a transform.
func (s *Source) sameWatch(other *Source) bool {
	return s.Watch.Key == other.Watch.Key && s.Watch.Transform == nil && other.Watch.Transform == nil
}

// keepsWatch reports whether AddWatches can use next without replacing the current watch. Unlike sameWatch, it allows
// the current watch to have a transform. Otherwise, a handler that adds a watch with a transform would replace the
// watch on every reconcile.
func (s *Source) keepsWatch(next *Source) bool {
	return s.Watch.Key == next.Watch.Key && (s.Watch.Transform != nil || next.Watch.Transform == nil)
}

// Options is what a feed watches. It is immutable. Its address identifies it; see [Caller].
type Options struct {
	Primary     *Source
	Secondaries []*Source // if keys are equal, the last one wins
	// KeepSecondaries keeps the secondaries that exist when the options take effect, even if they are not listed.
	KeepSecondaries bool
	// Effect is called when a swap puts the options into effect. The target is paused, if the feed is attached. Calls are
	// made in the order of the swaps. Effect can be called while the delivery of a watch is locked. It can be nil.
	Effect func()
}

// Caller is a handler call that changes its own type's secondaries. The zero Caller is not a handler.
type Caller struct {
	Options *Options // the options in effect when the handler was called
	Key     string   // the object for which it was called
}

// Target receives keys. Its methods must be safe for concurrent use, must return quickly, and must not call the feed,
// except [Feed.Store]. A paused target accepts keys without processing them.
type Target interface {
	Pause()
	Resume()
	// AddExisting receives objects that have existed before: those of an initial list.
	AddExisting(keys []string)
	// AddChanged receives objects of the primary source that have changed.
	AddChanged(keys []string)
	// AddAffected receives objects to reconcile because of a change to a secondary's object. There can be none.
	AddAffected(keys []string, gvr schema.GroupVersionResource, key string)
	// AddCallers receives objects whose handlers asked for a secondary before it had synced.
	AddCallers(keys []string)
	// AddAllAfterLoss must add all objects, including those that are not in the cache and must be reconciled nevertheless.
	// It is called when the state of an object was lost, because changes were combined; see [Loses].
	AddAllAfterLoss()
	// AddAllAfterSwap is called when new options have taken effect. It must add the same objects as AddAllAfterLoss.
	AddAllAfterSwap()
	// Deleted is called when an object of the primary source was deleted. If accepted is false, a predicate has filtered
	// out the change, and AddChanged is not called.
	Deleted(key string, accepted bool)
	// Normalize returns a key that Source.Targets has returned in the form of the queue, or an error.
	Normalize(key string) (string, error)
	// Malformed receives a key that Normalize rejects. The name is that of the source.
	Malformed(name, key string, err error)
}
