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

// Handler reconciles one object, which can be new, changed, deleted or unchanged. It receives only identifiers.
//
// It is never called concurrently for the same ObjectIdentifiers. Its context is cancelled when the type is no longer
// served ([ErrServingStopped]), when Run ends ([ErrRunEnded]) or when the call takes too long ([ErrReconcileTimeout]).
// The handler should then return promptly, because the object is not reconciled again until the handler has returned.
//
// The same handler can be used in several runs. Between two runs, another replica may have been the leader and changed
// the objects, so data kept in memory since an earlier run can be outdated. [RunContext] identifies the run. [CauseOf]
// returns why the handler was called.
//
// The returned error determines what happens next. Errors can be wrapped.
//
//   - nil: the object is reconciled again on its next event or resync, or in the next run.
//   - [RequeueAfter]: the object is reconciled again after the delay. An earlier reconcile, for example one triggered
//     by an event, cancels the requeue, unless the option [KeepRequeues] is given. A handler that depends on the delay
//     must therefore always return RequeueAfter.
//   - [Terminal]: a failure that is not retried. The object is parked until an event, resync, Enqueue or the next run.
//   - A NotFound for the object itself while it is not in the cache: the object is not retried. The same applies if a
//     create is rejected because the object's namespace is terminating. If a type is missing, the API server returns a
//     NotFound without a name. While the state of the object's type is [TypeNotFound], such an error is treated like a
//     NotFound for the object itself. Otherwise, it counts as a failure, because another type may be missing.
//   - Any error after cancellation with [ErrRunEnded] or [ErrServingStopped]: the next run reconciles the object.
//   - [Interrupted]: the object is queued again after at most a second. This does not count as a failure.
//   - Any other error or a panic: a failure. The object is retried with exponential backoff between
//     Config.MinRetryDelay and Config.MaxRetryDelay, or earlier on an event. An object that fails more than
//     Config.QueueMaxRetries times in a row is parked.
//
// A typed nil error counts as a panic, and so does an error with a method that panics. An error's methods are called
// before the handler call is considered finished.
type Handler func(ctx context.Context, id ObjectIdentifiers) error

// These errors are the cancellation causes of a handler's context; see [context.Cause].
var (
	ErrServingStopped   = errors.New("the type is no longer served")
	ErrRunEnded         = errors.New("the controller's run ended")
	ErrReconcileTimeout = errors.New("the reconcile took longer than its timeout")
)

// These errors can be found with [errors.Is].
var (
	// ErrInvalidOptions is wrapped by the error for an invalid [Config] or invalid options, which lists all of them.
	ErrInvalidOptions = errors.New("invalid options")
	// ErrAlreadyRunning is returned by Run and RunWatches if they are already running for any of the same types, or for a
	// shard with another count, or if user code of an earlier run, other than handlers, is still running.
	ErrAlreadyRunning = errors.New("already running, or user code of an earlier run is still running")
	// ErrStillRunning is wrapped by the errors of Run, StopServiceGVK and DrainShard if they return while handlers,
	// watches or other functions are still running. The error lists them. An error of Run that wraps it also has the
	// method Returned; see [DynamicController.Run].
	ErrStillRunning = errors.New("still running")
	// ErrShardResumed is wrapped by the error of DrainShard if ResumeShard has been called before DrainShard has returned.
	// Handlers can be called again.
	ErrShardResumed = errors.New("the shard was resumed")
)

// invalid makes a non-nil error match ErrInvalidOptions, without changing its text.
func invalid(err error) error {
	if err == nil {
		return nil
	}
	return invalidError{err}
}

type invalidError struct{ error }

func (e invalidError) Unwrap() error        { return e.error }
func (e invalidError) Is(target error) bool { return target == ErrInvalidOptions }

// ErrNotServed is returned for a type that is not served: either StartServingGVK has not been called for it, or
// StopServiceGVK has stopped it.
var ErrNotServed = errors.New("the type is not served")

// ErrHandlerReplaced is returned by AddWatches if the calling handler has been replaced by StartServingGVK. It
// implements [Interrupted], so that a handler that returns it does not fail. Its object is reconciled by the new
// handler.
var ErrHandlerReplaced error = handlerReplacedError{}

type handlerReplacedError struct{}

func (handlerReplacedError) Error() string     { return "the handler has been replaced" }
func (handlerReplacedError) Interrupted() bool { return true }

// interruptedDelay is the delay before an interrupted reconcile is retried. The run usually ends before that.
const interruptedDelay = time.Second

// Interrupted is implemented by errors that can indicate an interruption rather than a failure, such as
// replica.ErrNotLeading after this replica has lost leadership. See [Handler]. To check for an interruption:
//
//	var interrupted dynamiccontroller.Interrupted
//	if errors.As(err, &interrupted) && interrupted.Interrupted() { ... }
//
// Other packages can implement Interrupted without importing this one.
type Interrupted interface {
	error
	// Interrupted reports whether the work was interrupted. If it returns false, the error is handled like any other.
	Interrupted() bool
}

// RequeueAfter returns an error that makes the controller reconcile the object again after d. This does not count as a
// failure, and it resets the number of consecutive failures. If d is not positive, the delay is the same as after a
// failure, so that a handler that always returns such an error does not spin.
//
// The reason can be given by wrapping the error. Requeues are logged at V(1) with the text of the error that the
// handler returned:
//
//	return fmt.Errorf("the bucket is being created: %w", dynamiccontroller.RequeueAfter(time.Second))
func RequeueAfter(d time.Duration) error { return &requeueError{after: d} }

type requeueError struct{ after time.Duration }

// RequeueDelay reports whether err is, or wraps, the result of [RequeueAfter], and returns its delay. Callers can use
// it to avoid reporting a requeue as a failure.
func RequeueDelay(err error) (after time.Duration, ok bool) {
	var requeue *requeueError
	if errors.As(err, &requeue) {
		return requeue.after, true
	}
	return 0, false
}

func (e *requeueError) Error() string { return fmt.Sprintf("requeue after %s", e.after) }

// Terminal wraps an error to park the object instead of retrying it; see [Handler]. If err is nil or holds a nil
// pointer, the object is parked with an error that describes the mistake.
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

// ObjectIdentifiers identifies an object. It is used as the queue's item type.
type ObjectIdentifiers struct {
	// NamespacedKey is "namespace/name", or "name" for a cluster-scoped object. Callers can also use "/name", the
	// format of types.NamespacedName; handlers always receive "name". The type's scope is not checked.
	NamespacedKey string
	GVR           schema.GroupVersionResource
}

// normalizeKey returns a key in the form used by the queue and the cache, or an error for a malformed key.
func normalizeKey(key string) (string, error) {
	switch {
	case key == "" || strings.HasSuffix(key, "/"):
		return "", errors.New("the key has no name; expected namespace/name or name")
	case strings.Count(key, "/") > 1:
		return "", errors.New("the key has more than two parts; expected namespace/name or name")
	default:
		return strings.TrimPrefix(key, "/"), nil
	}
}

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

// String returns a string such as "widgets.v1.example.com namespace/name".
func (id ObjectIdentifiers) String() string {
	return nameOf(id.GVR) + " " + id.NamespacedKey
}

// nameOf returns a GVR in the form that kubectl accepts: resource.version.group.
func nameOf(gvr schema.GroupVersionResource) string {
	return strings.TrimSuffix(gvr.Resource+"."+gvr.Version+"."+gvr.Group, ".")
}

// ResourceFor returns the GVR for a GVK, for callers of StartServingGVK that have only the GVK. Errors from the mapper
// are wrapped, so meta.IsNoMatchError reports whether the kind is unknown.
func ResourceFor(mapper meta.RESTMapper, gvk schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return schema.GroupVersionResource{}, fmt.Errorf("find the resource for %s: %w", gvk, err)
	}
	return mapping.Resource, nil
}
