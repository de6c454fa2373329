package references

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/internal/perrun"
)

// Config configures a [Tracker]. Controller is required.
type Config struct {
	// Controller serves the types whose objects refer to others. It also watches the types that they refer to, and needs
	// list and watch on them.
	Controller *dynamiccontroller.DynamicController
	// WatchOptions returns the options for the watch of a referenced type. By default, the metadata of all objects of
	// the type is cached. It is called when a watch of the type is started. It must return equivalent options in each
	// call for a type, must not declare references, and must be safe for concurrent use. While it is running, only
	// declarations of references to the type wait.
	//
	// A change that the options exclude is not delivered: WithPredicate excludes changes, and WithNamespaces,
	// WithLabelSelector and WithFieldSelector exclude objects. A transform must keep the labels. AfterLoss has no effect,
	// because the Tracker passes its own.
	WatchOptions func(gvr schema.GroupVersionResource) []dynamiccontroller.WatchesOption
	// Hooks are called when a watch starts or stops, and for each event, for example to update metrics. By default, no
	// hook is called.
	Hooks Hooks
}

// Tracker holds the references of the objects of a controller. One Tracker can be used for all types. Its methods are
// safe for concurrent use.
type Tracker struct {
	config Config
	runs   perrun.State[run]
	counts *counts
}

// New returns a Tracker. It starts nothing. The error lists all invalid fields of config.
func New(config Config) (*Tracker, error) {
	if config.Controller == nil {
		return nil, errors.New("references: Config.Controller: must not be nil")
	}
	if config.WatchOptions == nil {
		config.WatchOptions = func(schema.GroupVersionResource) []dynamiccontroller.WatchesOption { return nil }
	}
	return &Tracker{config: config, counts: &counts{}}, nil
}

// Begin returns the References for a reconcile of an object. ctx must be the context of the handler. The earlier
// references of the object stay in effect until Commit. If Begin is called again for the same object before Commit, the
// earlier References does not remove what the later one has declared.
//
// If ctx is not derived from the context of a handler, for example in a test, the references do not end with a run.
// They and their watches are kept until Forget or ForgetType is called.
func (t *Tracker) Begin(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) *References {
	run := t.runs.For(ctx)
	run.start(ctx, t.config, t.counts)
	return &References{run: run, id: id, attempt: run.nextAttempt()}
}

// Forget drops the references of an object in all runs. It must be called when the object is gone. It does not wait for
// the watches that it ends.
func (t *Tracker) Forget(id dynamiccontroller.ObjectIdentifiers) {
	for _, run := range t.runs.All() {
		run.forget(id)
	}
}

// ForgetType drops the references that the objects of a type have declared, in all runs. Unless the run ends, it must
// be called after StopServiceGVK has returned nil, so that no handler declares references afterwards.
func (t *Tracker) ForgetType(gvr schema.GroupVersionResource) {
	for _, run := range t.runs.All() {
		run.forgetType(gvr)
	}
}

// References declares the references of one object during one reconcile. Its methods are safe for concurrent use.
type References struct {
	run     *run
	id      dynamiccontroller.ObjectIdentifiers
	attempt uint64

	ended atomic.Bool // Commit or Abort has been called
}

// Object declares a reference to an object, which need not exist. The namespace is empty for a cluster-scoped object.
// Object returns an error if the name is empty, if the options for the watch of the type are invalid, or if Commit or
// Abort has been called. The error wraps [dynamiccontroller.ErrRunEnded] if the run has ended.
func (r *References) Object(gvr schema.GroupVersionResource, namespace, name string) error {
	if name == "" {
		return fmt.Errorf("references of %s: the name of a referenced object is empty", r.id)
	}
	return r.declare(gvr, selection{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}, nil)
}

// Objects declares a reference to all objects of a type in a namespace that match the selector. An empty namespace
// means all namespaces, and a nil selector matches all objects. labels.Nothing declares no reference. An implementation
// of labels.Selector other than that of package labels must match only objects that its Requirements match. Objects
// returns the same errors as Object.
func (r *References) Objects(gvr schema.GroupVersionResource, namespace string, selector labels.Selector) error {
	if selector == nil {
		selector = labels.Everything()
	}
	if _, selectable := selector.Requirements(); !selectable {
		return nil // labels.Nothing
	}
	s := selection{NamespacedName: types.NamespacedName{Namespace: namespace}, selector: selector.String()}
	return r.declare(gvr, s, newQuery(selector))
}

func (r *References) declare(gvr schema.GroupVersionResource, s selection, q *query) error {
	err := errors.New("a reference was declared after Commit or Abort")
	if !r.ended.Load() {
		err = r.run.add(r.id, r.attempt, gvr, s, q)
	}
	if err != nil {
		return fmt.Errorf("references of %s: %w", r.id, err)
	}
	return nil
}

// Commit replaces the earlier references of the object with those that have been declared. If nothing has been
// declared, the object has no references afterwards. Commit has no effect after Commit or Abort. It does not wait for
// the watches that it ends.
func (r *References) Commit() {
	if r.ended.CompareAndSwap(false, true) {
		r.run.removeBefore(r.id, r.attempt)
	}
}

// Abort ends the declaration. The earlier references of the object and those that have been declared stay in effect.
// Abort has no effect after Commit or Abort.
func (r *References) Abort() {
	r.ended.Store(true)
}

// Lister returns a lister that reads the cache of the watch on a type, to which a reference must have been declared.
// Otherwise, the error is [dynamiccontroller.ErrNotServed] or, if the run has ended, [dynamiccontroller.ErrRunEnded].
func (r *References) Lister(gvr schema.GroupVersionResource) (dynamiccontroller.SecondaryLister, error) {
	lister, err := r.run.lister(gvr)
	if err != nil {
		return nil, fmt.Errorf("references of %s: %s: %w", r.id, gvr.GroupResource(), err)
	}
	return lister, nil
}

// Reader returns a Reader that declares what it reads, and then reads it from the given Reader. It does not read what
// cannot be declared. The given Reader must be at least as current as the watch of the type. This applies to
// [handlers.Live], and to [handlers.Cached] with [References.Lister].
func (r *References) Reader(reader handlers.Reader) handlers.Reader { return declaring{r, reader} }

type declaring struct {
	references *References
	reader     handlers.Reader
}

func (d declaring) Get(
	ctx context.Context, gvr schema.GroupVersionResource, namespace, name string,
) (*unstructured.Unstructured, error) {
	if err := d.references.Object(gvr, namespace, name); err != nil {
		return nil, err
	}
	return d.reader.Get(ctx, gvr, namespace, name)
}

func (d declaring) List(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, selector labels.Selector,
) ([]*unstructured.Unstructured, error) {
	if err := d.references.Objects(gvr, namespace, selector); err != nil {
		return nil, err
	}
	return d.reader.List(ctx, gvr, namespace, selector)
}
