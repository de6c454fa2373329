package typewatch

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/listwatch"
	"github.com/dynamic-controller/engine/internal/writes"
)

// HistoryOf returns the number of the current history of a group's resourceVersions. It grows with each restore.
func (p *Pool) HistoryOf(group string) int64 { return p.histories.of(group) }

// Mark identifies what a watch had received at a time. The zero Mark equals no other.
type Mark struct {
	watch    *watch
	progress uint64
}

// Lacks reports whether the subscription's cache will show a write, but does not yet. The resourceVersions of the write
// belong to the given history of its group. If a former call has returned true, and set the mark, Lacks returns at once
// if the watch has received nothing since then. A cache that has not synced lacks the write until its first list has
// arrived, or a request has failed. A cache of a type that the API server cannot watch lacks nothing. Lacks takes no
// lock that is held during functions of users. [Config].Progress is called when its result can have changed.
func (s *Subscription) Lacks(write writes.Write, history int64, mark *Mark) bool {
	if s.closed.Load() {
		return false
	}
	current := s.watch()
	now := Mark{current, current.progress.Load()}
	if *mark == now {
		return true
	}
	if *mark = (Mark{}); current.lacks(write, history) {
		*mark = now
		return true
	}
	if current.selectsAny(write) {
		return false
	}
	// A replacement waits until its watch contains what the current one has delivered, but the current one delivers
	// nothing that it does not select.
	next := s.replacedBy()
	if s.watch() != current { // the replacement has ended in the meantime
		return s.Lacks(write, history, mark)
	}
	return next.lacks(write, history)
}

// replacedBy returns the watch of a pending replacement, or nil.
func (s *Subscription) replacedBy() *watch {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.replacement == nil {
		return nil
	}
	return s.replacement.to.watch
}

// Read reads an object of the type from the API server, once, and returns the write that a cache must contain to show
// its current state.
func (s *Subscription) Read(ctx context.Context, of writes.Target) (writes.Write, error) {
	key := s.watch().key
	write := writes.Write{
		Server: of.Server, Resource: of.Resource, Namespace: of.Namespace, Name: of.Name, Gone: true,
	}
	requests := s.pool.config.Source.Requests(key.GVR, of.Namespace, max(key.Projection, objects.Metadata))
	_, err := requests.List(ctx, listwatch.RequestOptions{ListOptions: metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", of.Name).String(),
	}}, func(o runtime.Object) {
		if m, err := meta.Accessor(o); err == nil && m.GetName() == of.Name {
			write.UID, write.Gone = m.GetUID(), false
			write.States = []writes.State{{Version: m.GetResourceVersion(), Labels: m.GetLabels()}}
		}
	})
	if err != nil {
		return writes.Write{}, fmt.Errorf("read %s: %w", of.Name, err)
	}
	return write, nil
}

func (w *watch) lacks(write writes.Write, history int64) bool {
	if w == nil {
		return false
	}
	r := w.reflectorOf(write.Namespace)
	switch {
	case r == nil:
		return false
	case w.listed.Load():
		return r.lacks(write, history)
	}
	// The first list can be older than the write.
	phase := w.state.current.Load().Phase
	return (phase == Syncing || phase == Stopped) && (len(write.States) == 0 || w.selectsAny(write))
}

func (r *reflector) lacks(write writes.Write, history int64) bool {
	w, own := r.watch, r.history.Load()
	if own > history {
		return false
	}
	observed := version(r.observed.Load())
	missing := write.Missing(writes.View{
		Reached: func(v string) bool {
			// If a restore has been noticed, but the list of this watch has not arrived, its versions mean nothing.
			return own == history && (observed == none || !versionNumber(v).isNewer(observed))
		},
		Selects: func(set labels.Set) bool { return w.selects(write, set) },
		Has: func() bool {
			return w.store.HasUID(cache.NewObjectName(write.Namespace, write.Name).String(), write.UID)
		},
	})
	return missing && !r.loop.State().Lacks.Has(listwatch.NoWatch)
}

// objectSelector decides which objects a watch selects.
type objectSelector struct {
	labels labels.Selector
	fields fields.Selector
}

func newObjectSelector(key Key) objectSelector {
	s := objectSelector{labels.Everything(), fields.Everything()}
	if parsed, err := labels.Parse(key.labelSelector()); err == nil {
		s.labels = parsed
	}
	if parsed, err := fields.ParseSelector(key.FieldSelector); err == nil {
		s.fields = parsed
	}
	return s
}

// selectsAny reports whether the watch selects one of the states of an object.
func (w *watch) selectsAny(write writes.Write) bool {
	return slices.ContainsFunc(write.States, func(s writes.State) bool { return !s.Scaled && w.selects(write, s.Labels) })
}

// selects reports whether the watch selects an object in a namespace of the watch. Fields other than the name and the
// namespace are unknown, and count as selected.
func (w *watch) selects(write writes.Write, set labels.Set) bool {
	for _, term := range w.selector.fields.Requirements() {
		value := write.Name
		switch term.Field {
		case "metadata.name":
		case "metadata.namespace":
			value = write.Namespace
		default:
			continue
		}
		if (value == term.Value) == (term.Operator == selection.NotEquals) {
			return false
		}
	}
	return w.selector.labels.Matches(set)
}

// reflectorOf returns the reflector for a namespace, or nil.
func (w *watch) reflectorOf(namespace string) *reflector {
	for _, r := range w.reflectors {
		if r.namespace == "" || r.namespace == namespace {
			return r
		}
	}
	return nil
}
