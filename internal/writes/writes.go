// Package writes records which objects a handler call has written, so that the engine can hold the next call for the
// same object back until its caches contain these writes. Transports of package replica and of the engine record them,
// in the [Recorder] that the context of a request carries.
package writes

import (
	"context"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Write is what a call has written to an object, in one request or several.
type Write struct {
	// Server is the API server, with the path of a proxy; see [ServerOf]. It is empty for servers in memory.
	Server    string               `json:"-"`
	Resource  schema.GroupResource `json:"resource"`
	Namespace string               `json:"namespace,omitempty"`
	Name      string               `json:"name"`
	UID       types.UID            `json:"uid,omitempty"` // if it is unknown, the name decides
	// States are those after the requests, oldest first. It is empty if only the removal of the object is known.
	States []State `json:"states,omitempty"`
	// Gone is true if the object was removed.
	Gone bool `json:"gone,omitempty"`
	// History is the number of the history to which the versions belong, in this process. The engine sets it.
	History int64 `json:"-"`
}

// State is a state of an object. A later state with the same labels replaces an earlier one.
type State struct {
	Version string     `json:"version"` // the resourceVersion
	Labels  labels.Set `json:"labels,omitempty"`
	// Scaled is true for the response of the scale subresource, which does not contain the labels.
	Scaled bool `json:"scaled,omitempty"`
}

// View is what a cache knows about the object of a write.
type View struct {
	// Reached reports whether the cache contains all changes up to a version, or whether versions cannot be compared.
	Reached func(version string) bool
	// Selects reports whether the watch selects the object with these labels, as far as this is known.
	Selects func(labels.Set) bool
	// Has reports whether the cache contains the object.
	Has func() bool
}

// Missing reports whether the cache will show the write, but does not yet. A watch receives an event of each state that
// it selects, and of the first state that it no longer selects. An object that the cache contains, but that the watch
// selects in none of the states, leaves with the first one. A removed object can still have to appear, if the same call
// has created and removed it.
func (w Write) Missing(in View) bool {
	due, selected := "", false
	for _, s := range w.States {
		selects := s.Scaled && selected || !s.Scaled && in.Selects(s.Labels)
		if selects || selected {
			due = s.Version
		}
		selected = selects
	}
	switch {
	case due != "" && !in.Reached(due):
		return true
	case due == "" && len(w.States) > 0 && !in.Reached(w.States[0].Version):
		return in.Has()
	default:
		return w.Gone && in.Has()
	}
}

// isTo reports whether two writes with the same UID are to the same object. Some objects are served by several groups,
// each of which has caches of its own.
func (w *Write) isTo(other Write) bool {
	return w.Server == other.Server && w.Resource == other.Resource
}

// add adds another write to the same object, whose response can have been read earlier or later.
func (w *Write) add(other Write) {
	w.States = append(w.States, other.States...)
	slices.SortStableFunc(w.States, func(a, b State) int {
		order, err := resourceversion.CompareResourceVersion(a.Version, b.Version)
		if err != nil {
			return 0 // in the order of the responses
		}
		return order
	})
	kept := w.States[:0]
	for _, s := range w.States {
		if last := len(kept) - 1; last >= 0 && (s.Scaled || !kept[last].Scaled && maps.Equal(s.Labels, kept[last].Labels)) {
			kept[last].Version = s.Version
		} else {
			kept = append(kept, s)
		}
	}
	w.States = kept
	w.Gone = w.Gone || other.Gone
}

// Recorder collects the writes of one handler call. The zero value is ready to use. It is safe for concurrent use,
// because a handler can write from several goroutines, also after it has returned.
type Recorder struct {
	mu      sync.Mutex // guards the fields below
	writes  []Write
	index   map[types.UID]int // of the first write with the UID
	unknown []Target
	taken   bool
}

// add records a write. Writes after Take are dropped.
func (r *Recorder) add(w Write) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken {
		return
	}
	i, known := r.index[w.UID]
	if known && w.UID != "" && r.writes[i].isTo(w) {
		r.writes[i].add(w)
		return
	}
	if r.index == nil {
		r.index = map[types.UID]int{}
	}
	if !known {
		r.index[w.UID] = len(r.writes)
	}
	r.writes = append(r.writes, w)
}

// addUnknown records a request with an unknown outcome. Those after Take are dropped.
func (r *Recorder) addUnknown(t Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.taken && !slices.Contains(r.unknown, t) {
		r.unknown = append(r.unknown, t)
	}
}

// Take returns one write for each object, and the objects to which requests with an unknown outcome were sent. Later
// ones are not recorded.
func (r *Recorder) Take() (made []Write, unknown []Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	made, unknown = r.writes, r.unknown
	r.writes, r.index, r.unknown, r.taken = nil, nil, nil, true
	return made, unknown
}

// Key is the key of the Recorder in a context. A context can return the Recorder for it without a context of its own.
type Key struct{}

// Record records a write in the Recorder that a context carries, if any.
func Record(ctx context.Context, w Write) {
	if recorder := From(ctx); recorder != nil {
		recorder.add(w)
	}
}

// RecordUnknown records that a write with an unknown outcome was sent, in the Recorder that a context carries, if any.
// It is not recorded if the name of the object is unknown, because it is generated or the request is for a collection.
func RecordUnknown(ctx context.Context, t Target) {
	t.Subresource = ""
	if recorder := From(ctx); recorder != nil && t.Name != "" {
		recorder.addUnknown(t)
	}
}

// recordLost is RecordUnknown for a request.
func recordLost(r *http.Request) {
	if From(r.Context()) == nil {
		return
	}
	if t, ok := TargetOf(r); ok {
		if t.Name == "" && r.Method == http.MethodPost {
			t.Name = nameIn(r)
		}
		RecordUnknown(r.Context(), t)
	}
}

// nameIn returns the name of the object in a request, or an empty string.
func nameIn(r *http.Request) string {
	parser := newParser(r.Header.Get("Content-Type"))
	if parser == nil || r.GetBody == nil {
		return ""
	}
	body, err := r.GetBody()
	if err != nil {
		return ""
	}
	defer func() { _ = body.Close() }()
	sent, err := io.ReadAll(body)
	if err != nil {
		return ""
	}
	o, _ := parser.parse(sent, true)
	return o.name
}

// From returns the Recorder that a context carries, or nil.
func From(ctx context.Context) *Recorder {
	r, _ := ctx.Value(Key{}).(*Recorder)
	return r
}
