package dynamiccontroller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/internal/protect"
)

// Handler reconciles one object. It receives the identity of the object and not a change: the object can be new,
// changed, deleted or unchanged.
//
// It is never called concurrently for the same ObjectIdentifiers. Its context is cancelled when the type is no longer
// served ([ErrServingStopped]), when Run ends ([ErrRunEnded]) and when the call takes too long ([ErrReconcileTimeout]);
// [context.Cause] returns the reason. The handler should then return promptly, because the object is not reconciled
// again before the handler has returned.
//
// The returned error determines what happens next:
//
//   - nil: the object is not reconciled again until its next event, resync or run.
//   - [RequeueAfter]: the object is reconciled again after the delay. This is not a failure. An event, Enqueue or a
//     resync can reconcile the object earlier; the outcome of that reconcile then replaces the pending requeue. A
//     handler that depends on the delay must therefore return RequeueAfter from every call.
//   - [Terminal]: a failure that a retry cannot fix. The object is parked until its next event, Enqueue, resync or run.
//   - a NotFound for the object itself while the cache does not hold it either, or the rejection of a create because
//     the object's own namespace is terminating: the object is not retried, because nothing is left to do. For a type
//     that is not served, the API server returns a NotFound that names no object. Such an error counts as a NotFound
//     for the object itself while the state of the handler's type is [TypeNotFound]. In any other state it counts as a
//     failure, because the error can refer to the type of a child.
//   - any error after the context was cancelled because Run ended or the type is no longer served: the object is not
//     retried. The next run reconciles it.
//   - an [Interrupted] error: the object is reconciled again within a second. This is not a failure.
//   - any other error, and a panic: a failure. It is retried with exponential backoff between Config.MinRetryDelay and
//     Config.MaxRetryDelay. An event can trigger the retry earlier. An object that fails more than
//     Config.QueueMaxRetries times in a row is parked.
//
// Errors are matched with errors.As and errors.Is, so they can be wrapped. The methods of an error are called only
// while the handler call still counts as running. The status and the log use only its text. A nil pointer that is
// returned as an error counts as a panic, and so does an error with a method that panics.
type Handler func(ctx context.Context, id ObjectIdentifiers) error

// The reasons why a handler's context is cancelled, as returned by [context.Cause].
var (
	ErrServingStopped   = errors.New("the type is no longer served")
	ErrRunEnded         = errors.New("the controller's run ended")
	ErrReconcileTimeout = errors.New("the reconcile took longer than its timeout")
)

// Interrupted is an error that reports whether work was interrupted rather than failed. For example, a write is
// rejected with replica.ErrNotLeading after this replica has lost leadership. If a handler returns such an error,
// wrapped or not, and its Interrupted method returns true, the call does not count as a failure. The object is
// reconciled again within a second or by the next run. Other packages can implement Interrupted without importing this
// one. To check for it:
//
//	var interrupted dynamiccontroller.Interrupted
//	if errors.As(err, &interrupted) && interrupted.Interrupted() { ... }
type Interrupted interface {
	error
	// Interrupted reports whether the work was interrupted. If it returns false, the error is an ordinary one.
	Interrupted() bool
}

// RequeueAfter returns an error that makes the controller reconcile the object again after d. This does not count as a
// failure, and it resets the number of consecutive failures. If d is not positive, the object is reconciled again after
// the same backoff as for a failure, so that a handler that always returns such an error does not spin.
func RequeueAfter(d time.Duration) error { return &requeueError{after: d} }

type requeueError struct{ after time.Duration }

// RequeueDelay reports whether err is, or wraps, an error that [RequeueAfter] returned. If so, it also returns the
// delay. Callers can use it to avoid reporting a requeue as a failure.
func RequeueDelay(err error) (after time.Duration, ok bool) {
	var requeue *requeueError
	if errors.As(err, &requeue) {
		return requeue.after, true
	}
	return 0, false
}

func (e *requeueError) Error() string { return fmt.Sprintf("requeue after %s", e.after) }

// Terminal marks a failure that a retry cannot fix: the object is parked at once. It is reconciled again on its next
// event, at its resync, by Enqueue and in the next run. If err is nil, or a nil pointer in an error variable, the
// object is parked with an error that reports this mistake.
func Terminal(err error) error {
	switch {
	case err == nil:
		err = errors.New("Terminal was called with a nil error")
	case protect.IsNil(err):
		err = fmt.Errorf("Terminal was called with a nil %T", err)
	}
	return &terminalError{err: err}
}

type terminalError struct{ err error }

func (e *terminalError) Error() string { return "terminal: " + e.err.Error() }
func (e *terminalError) Unwrap() error { return e.err }

// ObjectIdentifiers identifies an object. It is the key of the queue.
type ObjectIdentifiers struct {
	// NamespacedKey is "namespace/name", or "name" for a cluster-scoped object. Callers can also use "/name", which is
	// how types.NamespacedName formats such a key; handlers always receive "name". The scope of the type is not
	// checked: a key with a namespace for a cluster-scoped type, or without one for a namespaced type, refers to an
	// object that does not exist.
	NamespacedKey string
	GVR           schema.GroupVersionResource
}

// normalizeKey returns a key in the form of the queue and the cache. It returns an error for a malformed key.
func normalizeKey(key string) (string, error) {
	namespace, name, hasNamespace := strings.Cut(key, "/")
	if !hasNamespace {
		namespace, name = "", key
	}
	switch {
	case name == "":
		return "", errNoName
	case strings.Contains(name, "/"):
		return "", errTooManyParts
	case namespace == "":
		return name, nil
	default:
		return key, nil
	}
}

var (
	errNoName       = errors.New("the key has no name, want namespace/name or name")
	errTooManyParts = errors.New("the key has more than two parts, want namespace/name or name")
)

// Namespace returns the namespace of the object. It is empty for a cluster-scoped object.
func (id ObjectIdentifiers) Namespace() string {
	namespace, _, _ := cache.SplitMetaNamespaceKey(id.NamespacedKey)
	return namespace
}

// Name returns the name of the object.
func (id ObjectIdentifiers) Name() string {
	_, name, _ := cache.SplitMetaNamespaceKey(id.NamespacedKey)
	return name
}

// String returns the object in the form that logs and errors use: "widgets.v1.example.com namespace/name".
func (id ObjectIdentifiers) String() string {
	return nameOf(id.GVR) + " " + id.NamespacedKey
}

// nameOf returns a GVR in the form that kubectl accepts: resource.version.group.
func nameOf(gvr schema.GroupVersionResource) string {
	if gvr.Group == "" {
		return gvr.Resource + "." + gvr.Version
	}
	return gvr.Resource + "." + gvr.Version + "." + gvr.Group
}

// ResourceFor returns the GVR of a kind. It helps callers of StartServingGVK that have a GVK. Errors of the mapper are
// wrapped, so meta.IsNoMatchError reports whether the kind is unknown, as opposed to a lookup that has failed.
func ResourceFor(mapper meta.RESTMapper, gvk schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return schema.GroupVersionResource{}, fmt.Errorf("find the resource of %s: %w", gvk, err)
	}
	return mapping.Resource, nil
}
