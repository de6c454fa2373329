package dynamiccontroller

import (
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// WatchError describes a failed watch. See [WithWatchErrors].
type WatchError struct {
	GVR schema.GroupVersionResource // the watched type

	// Namespaces, LabelSelector and FieldSelector select the objects of the watch. They have the same form as the fields
	// of [WatchKey].

	Namespaces    string
	LabelSelector string
	FieldSelector string

	State TypeState // the new state of the watch: TypeNotFound, TypeForbidden or TypeFailing
	// Err is the error of the last request that failed. It can wrap the API server's Status, so that functions such as
	// apierrors.IsForbidden can be used.
	Err error
}

// watchErrors passes the failures of watches to a user function. It calls the function in a goroutine of its own,
// because watches wait for their observer. The goroutine runs only while there are failures to pass on.
type watchErrors struct {
	handle func(WatchError)
	logOf  func(schema.GroupVersionResource) logr.Logger

	mu      sync.Mutex // guards the fields below; not held while handle is called
	passed  map[typewatch.Key]passedError
	pending map[typewatch.Key]WatchError // the newest failure of each watch that has not been passed on
	order   []typewatch.Key              // of pending
	running bool                         // whether the goroutine is running
}

// passedError is the last failure of a watch that was passed on.
type passedError struct {
	state TypeState
	at    time.Time
}

// newWatchErrors returns nil if handle is nil.
func newWatchErrors(handle func(WatchError), logOf func(schema.GroupVersionResource) logr.Logger) *watchErrors {
	if handle == nil {
		return nil
	}
	return &watchErrors{
		handle: handle, logOf: logOf,
		passed: map[typewatch.Key]passedError{}, pending: map[typewatch.Key]WatchError{},
	}
}

// observe passes on the new state of a watch if it is a failure. It does not block.
func (w *watchErrors) observe(key typewatch.Key, s typewatch.State) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch state := TypeState(s.Phase); state {
	case TypeStopped:
		delete(w.passed, key)
		delete(w.pending, key)
		w.order = slices.DeleteFunc(w.order, func(other typewatch.Key) bool { return other == key })
	case TypeForbidden, TypeNotFound, TypeFailing:
		now := time.Now()
		if last := w.passed[key]; last.state == state && now.Sub(last.at) < repeatAfter {
			return
		}
		w.passed[key] = passedError{state: state, at: now}
		w.addLocked(key, WatchError{
			GVR: key.GVR, Namespaces: key.Namespaces, LabelSelector: key.LabelSelector, FieldSelector: key.FieldSelector,
			State: state, Err: s.Err,
		})
	}
}

func (w *watchErrors) addLocked(key typewatch.Key, e WatchError) {
	if _, waits := w.pending[key]; !waits {
		w.order = append(w.order, key)
	}
	w.pending[key] = e
	if !w.running {
		w.running = true
		go w.run()
	}
}

func (w *watchErrors) run() {
	for e, ok := w.next(); ok; e, ok = w.next() {
		callUserCode(w.logOf(e.GVR), "Watch error function panicked", func() { w.handle(e) })
	}
}

// next removes and returns a pending failure. If it returns false, the goroutine must end.
func (w *watchErrors) next() (e WatchError, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.order) == 0 {
		w.running = false
		return WatchError{}, false
	}
	e = w.pending[w.order[0]]
	delete(w.pending, w.order[0])
	w.order = w.order[1:]
	return e, true
}
