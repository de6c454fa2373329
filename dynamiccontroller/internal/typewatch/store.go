package typewatch

import (
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// store is what one reflector fills. It implements [cache.ReflectorStore] and [cache.TransformingStore]. Whether anybody
// hears of what becomes of it is its feed's business.
type store struct {
	depth     Depth
	contents  contents
	transform cache.TransformFunc
	health    *health
	feed      *feed

	// The feed's deliver guards what follows.

	// listed: a list of the present run is in the store.
	listed bool
	// muted: another store takes this one's place, or needs to do so no longer. What the reflector still brings counts
	// for nothing.
	muted bool
	// position is the resourceVersion of the last list, or of the newest event since.
	position string
}

var (
	_ cache.ReflectorStore    = (*store)(nil)
	_ cache.TransformingStore = (*store)(nil)
)

func newStore(log logr.Logger, depth Depth, transform cache.TransformFunc, feed *feed, health *health) *store {
	s := &store{depth: depth, feed: feed, health: health}
	if depth == Keys {
		s.contents = newVersions()
	} else {
		s.contents = newObjects()
	}
	s.transform = safely(log, reducer(depth), transform)
	return s
}

// Transformer lets the reflector keep no more than the store does while it collects a list.
func (s *store) Transformer() cache.TransformFunc { return s.transform }

// Add, Update and Delete take a watch event.
func (s *store) Add(obj any) error { return s.put(obj) }

// Update is Add.
func (s *store) Update(obj any) error { return s.put(obj) }

// Delete takes a deletion.
func (s *store) Delete(obj any) error {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	s.feed.deliver.Lock()
	defer s.feed.deliver.Unlock()
	if s.muted {
		return nil
	}
	s.advance(versionOf(obj))
	old, known := s.contents.delete(key)
	if known {
		s.feed.changed(s, change{key: key, old: old})
	} else {
		s.feed.advanced(s)
	}
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
	s.feed.deliver.Lock()
	defer s.feed.deliver.Unlock()
	if s.muted {
		return nil
	}
	s.advance(versionOf(obj))
	old, same, err := s.contents.put(key, obj)
	if err != nil {
		return err
	}
	if same {
		s.feed.advanced(s)
	} else {
		s.feed.changed(s, change{key: key, old: old, now: obj})
	}
	return nil
}

// Replace takes a whole list.
func (s *store) Replace(list []any, version string) error {
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
	return s.take(items, version)
}

// take replaces the contents. Only the goroutine that runs the watch modifies them and listed, so that the comparison,
// which can take long, does not have to hold deliver.
func (s *store) take(items map[string]any, version string) error {
	// Before the first list of a run, no sink has been announced and the feed delivers only deletions.
	changes := s.contents.changes(items, s.listed)
	s.feed.deliver.Lock()
	defer s.feed.deliver.Unlock()
	if s.muted {
		return nil
	}
	if err := s.contents.replace(items); err != nil {
		return err
	}
	if version != "" {
		// It is older than the last one if the API server's etcd was restored from a backup.
		s.position = version
	}
	for _, obj := range items {
		s.advance(versionOf(obj))
	}
	s.listed = true
	s.feed.filled(s, changes)
	return nil
}

// Resync is of no use here: the engine resyncs by key.
func (s *store) Resync() error { return nil }

// advance notes that the store knows of all that happened up to version. The caller holds deliver.
func (s *store) advance(version string) {
	if s.position == "" || newer(version, s.position) {
		s.position = version
	}
}

// newer is false for versions that cannot be compared.
func newer(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order > 0
}
