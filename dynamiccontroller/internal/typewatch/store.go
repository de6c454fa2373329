package typewatch

import (
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// Sink hears what happens to the objects. Its funcs are called one at a time, in order, and after the store shows what
// they tell; they must return soon and must not call the watch's Attach or Detach.
type Sink struct {
	// Known is called with the keys of the objects that are there already, in portions, and Synced once it was called
	// with all of them.
	Known  func(keys []string)
	Synced func()
	// Changed is called with an object's state before and after: old is nil for a new object, now for a deleted one.
	// With [Keys] a state is no more than namespace and name.
	Changed func(key string, old, now any)
}

// portion is how many keys Known is called with at most, so that whoever takes them may keep its lock short.
const portion = 256

// store is what the reflector fills. It implements [cache.ReflectorStore] and [cache.TransformingStore].
type store struct {
	log       logr.Logger
	depth     Depth
	contents  contents
	transform cache.TransformFunc
	health    *health

	// deliver keeps changes and what the sink hears of them in one order. It is held across the sink's calls, which
	// is why they must not come back here.
	deliver sync.Mutex
	sink    *Sink
	// listed: a list of the present run is in the store. Until then a new sink has to wait for it.
	listed bool
	// announce: the next list is told to the sink whole, not by its difference alone.
	announce bool
	// heirOf is the store of the watch that was in this one's place. What the first list lacks of it is gone.
	heirOf *store
}

var (
	_ cache.ReflectorStore    = (*store)(nil)
	_ cache.TransformingStore = (*store)(nil)
)

func newStore(log logr.Logger, depth Depth, transform cache.TransformFunc, health *health) *store {
	s := &store{log: log, depth: depth, health: health}
	if depth == Keys {
		s.contents = newVersions()
	} else {
		s.contents = newObjects()
	}
	s.transform = safely(log, reducer(depth), transform)
	return s
}

func (s *store) attach(sink Sink) {
	s.deliver.Lock()
	defer s.deliver.Unlock()
	s.sink = &sink
	if s.listed {
		s.tellKnown()
	} else {
		s.announce = true
	}
}

func (s *store) detach() {
	s.deliver.Lock()
	defer s.deliver.Unlock()
	s.sink, s.announce = nil, false
}

// expectList makes the next list the first of a run: a sink hears it whole.
func (s *store) expectList() {
	s.deliver.Lock()
	defer s.deliver.Unlock()
	s.listed = false
	s.announce = s.sink != nil
}

// tellKnown tells the sink of all that there is. The caller holds deliver.
func (s *store) tellKnown() {
	s.announce = false
	keys := s.contents.keys()
	for len(keys) > 0 {
		n := min(portion, len(keys))
		s.sink.Known(keys[:n])
		keys = keys[n:]
	}
	s.sink.Synced()
}

// Transformer lets the reflector keep no more than the store does while it collects a list.
func (s *store) Transformer() cache.TransformFunc { return s.transform }

// Add, Update and Delete take a watch event.
func (s *store) Add(obj any) error { return s.put(obj) }

func (s *store) Update(obj any) error { return s.put(obj) }

func (s *store) Delete(obj any) error {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	s.deliver.Lock()
	defer s.deliver.Unlock()
	old, known := s.contents.delete(key)
	if !known {
		return nil
	}
	s.changed(key, old, nil)
	return nil
}

func (s *store) put(obj any) error {
	obj, err := s.transform(obj)
	if err != nil {
		return err
	}
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	s.deliver.Lock()
	defer s.deliver.Unlock()
	old, same, err := s.contents.put(key, obj)
	if err != nil || same {
		return err
	}
	s.changed(key, old, obj)
	return nil
}

// Replace takes a whole list. The sink hears how it differs from what was there, or everything the first time.
func (s *store) Replace(list []any, _ string) error {
	items := make(map[string]any, len(list))
	for _, obj := range list {
		obj, err := s.transform(obj)
		if err != nil {
			return err
		}
		key, err := cache.MetaNamespaceKeyFunc(obj)
		if err != nil {
			return fmt.Errorf("list item without a key: %w", err)
		}
		items[key] = obj
	}
	return s.take(items)
}

// take makes items all that there is, and tells the sink.
func (s *store) take(items map[string]any) error {
	s.deliver.Lock()
	defer s.deliver.Unlock()
	changes, err := s.contents.replace(items)
	if err != nil {
		return err
	}
	for key, old := range s.inherited() {
		if _, there := items[key]; !there {
			changes = append(changes, change{key: key, old: old})
		}
	}
	s.listed, s.heirOf = true, nil
	// Whoever the sink calls on finds a store that says it has synced.
	s.health.filled()
	whole := s.announce
	for _, c := range changes {
		if c.now == nil || !whole {
			s.changed(c.key, c.old, c.now)
		}
	}
	if whole {
		s.tellKnown()
	}
	return nil
}

// inherited is what the watch before knew, and did not find gone itself, as this store would have kept it: as a stub if
// it kept something else.
func (s *store) inherited() map[string]any {
	all := map[string]any{}
	for from := s.heirOf; from != nil; from = from.heirOf {
		for _, key := range from.contents.keys() {
			if _, known := all[key]; known {
				continue
			}
			all[key] = stubOf(s.depth, key)
			if objects := from.contents.objects(); objects != nil && from.depth == s.depth {
				if old, there, _ := objects.GetByKey(key); there {
					all[key] = old
				}
			}
		}
	}
	return all
}

// Resync is of no use here: the engine resyncs by key.
func (s *store) Resync() error { return nil }

// changed tells the sink. The caller holds deliver.
func (s *store) changed(key string, old, now any) {
	if s.sink != nil {
		s.sink.Changed(key, old, now)
	}
}

// reducer is what a depth leaves of an object.
func reducer(depth Depth) func(any) any {
	return func(obj any) any {
		m, ok := obj.(*metav1.PartialObjectMetadata)
		switch {
		case !ok || depth == Full:
			return obj
		case depth == Metadata:
			// They are most of what an object's metadata weighs.
			m.ManagedFields = nil
			return m
		default:
			return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				Namespace: m.Namespace, Name: m.Name, ResourceVersion: m.ResourceVersion,
			}}
		}
	}
}

// safely reduces an object and then applies the user's transform. An object that it fails on is kept: it is better large
// than lost.
func safely(log logr.Logger, reduce func(any) any, transform cache.TransformFunc) cache.TransformFunc {
	return func(obj any) (out any, err error) {
		obj = reduce(obj)
		if transform == nil {
			return obj, nil
		}
		defer func() {
			if r := recover(); r != nil {
				log.Error(fmt.Errorf("panic: %v", r), "transform panicked, the object is kept as it left it")
				out, err = obj, nil
			}
		}()
		out, err = transform(obj)
		if err == nil {
			_, err = meta.Accessor(out)
		}
		if _, ok := out.(runtime.Object); err == nil && !ok {
			err = fmt.Errorf("it returned a %T, which is no runtime.Object", out)
		}
		if err != nil {
			log.Error(err, "transform failed, the object is kept as it left it")
			return obj, nil
		}
		return out, nil
	}
}
