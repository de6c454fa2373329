package dynamiccontroller

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/feed"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// independentWatch is the use of a watch that belongs to no registration. StandaloneWatch and EventHandlerRegistration
// embed it: it has their options, their subscription and its end, and the methods that both have.
type independentWatch struct {
	name string // for errors, such as "the watch on pods.v1"
	log  logr.Logger
	key  WatchKey
	sub  *typewatch.Subscription
	end  context.CancelFunc // closes ended
	// ended is closed when Stop or Remove has been called.
	ended <-chan struct{}
}

// newIndependentWatch applies options to o. It returns a watch without a subscription, and the source to which the
// caller must subscribe. The lifetime is cancelled when the watch ends.
func (c *DynamicController) newIndependentWatch(
	name string, o *secondaryOptions, opts []WatchesOption,
) (w independentWatch, source *feed.Source, lifetime context.Context, err error) {
	o.mapFunc = func(context.Context, Object) []string { return nil } // so that functions are called without locks
	options := newWatches(o, opts)
	switch {
	case c.configErr != nil:
		err = c.configErr
	case options.err() != nil:
		err = invalid(options.err())
	case options.Key().BucketLabel != "":
		err = invalid(errors.New("WithBucketLabel is not supported, because the watch belongs to no shard"))
	default:
		err = c.source.Check(options.options.watch.Projection)
	}
	if err != nil {
		return w, nil, nil, err
	}
	lifetime, end := context.WithCancel(context.Background())
	key := options.Key()
	w = independentWatch{name: name, log: c.logOf(key.GVR), key: key, end: end, ended: lifetime.Done()}
	return w, options.options.asFeed, lifetime, nil
}

// independentOptions returns the options of a watch on a type, which newIndependentWatch completes.
func independentOptions(gvr schema.GroupVersionResource) *secondaryOptions {
	return &secondaryOptions{key: WatchKey{GVR: gvr}}
}

func (w *independentWatch) hasEnded() bool { return typewatch.IsClosed(w.ended) }

// close ends the subscription, and waits until its functions have returned and the channels are closed. The verb is for
// the error.
func (w *independentWatch) close(ctx context.Context, verb string, others ...<-chan struct{}) error {
	w.sub.Close()
	for _, ended := range append(others, w.sub.Ended()) {
		if !await(ctx, ended) {
			return fmt.Errorf("%s %s: %w", verb, w.name, context.Cause(ctx))
		}
	}
	return nil
}

// waitUntil waits until next returns nil. Otherwise, next returns a channel that is closed when its result can have
// changed.
func (w *independentWatch) waitUntil(ctx context.Context, next func() <-chan struct{}) error {
	fail := func(err error) error { return fmt.Errorf("wait for %s: %w", w.name, err) }
	for !w.hasEnded() {
		changed := next()
		if changed == nil {
			return nil
		}
		select {
		case <-changed:
		case <-w.ended:
		case <-ctx.Done():
			if !w.hasEnded() {
				return fail(context.Cause(ctx))
			}
		}
	}
	return fail(ErrNotServed)
}

// Key returns a key that describes the watch. Several watches can have equal keys.
func (w *independentWatch) Key() WatchKey { return w.key }

// Lister returns a lister that reads the cache of the watch. After the call to Stop or Remove, the cache is no longer
// updated, and each call to ByIndex calls the function of the index for all objects.
func (w *independentWatch) Lister() SecondaryLister {
	view := func() (typewatch.View, error) { return w.sub.View(), nil }
	return secondaryLister{lister: lister{gvr: w.key.GVR, find: view, addIndexes: w.addIndexes}}
}

func (w *independentWatch) addIndexes(indexes *typewatch.Indexes) (done <-chan struct{}, err error) {
	if w.hasEnded() {
		return nil, fmt.Errorf("%s: %w", w.name, ErrNotServed)
	}
	w.sub.AddIndexes(indexes)
	return closedAfter(func() {}), nil
}

// Status returns the status of the watch.
func (w *independentWatch) Status() WatchStatus { return watchStatusOf(w.sub) }

// RunningFunction returns the function or predicate of the watch that has been running for the longest time. It returns
// nil if none has been running for more than a second.
func (w *independentWatch) RunningFunction() *RunningFunction {
	var status TypeStatus
	status.addRunning(w.sub, " of "+nameOf(w.key.GVR))
	return status.RunningFunction
}
