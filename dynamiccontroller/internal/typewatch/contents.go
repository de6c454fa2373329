package typewatch

import (
	"hash/fnv"
	"strconv"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
)

// contents is what a store holds: objects, or their versions alone. Reads may come from anywhere, changes from one
// goroutine at a time.
type contents interface {
	put(key string, obj any) (old any, same bool, err error) // same: the version is the one that is there
	delete(key string) (old any, known bool)
	replace(items map[string]any) ([]change, error)
	has(key string) bool
	keys() []string
	len() int
	objects() cache.Indexer
}

// change is what became of an object: new when old is nil, deleted when now is.
type change struct {
	key      string
	old, now any
}

// objects holds whole objects, by key and by namespace.
type objects struct {
	indexer cache.Indexer
	count   atomic.Int64
}

func newObjects() *objects {
	return &objects{indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
}

func (o *objects) put(key string, obj any) (old any, same bool, err error) {
	old, known, err := o.indexer.GetByKey(key)
	if err != nil {
		return nil, false, err
	}
	if known && sameVersion(old, obj) {
		return old, true, nil
	}
	if !known {
		o.count.Add(1)
	}
	return old, false, o.indexer.Update(obj)
}

func (o *objects) delete(key string) (any, bool) {
	old, known, err := o.indexer.GetByKey(key)
	if err != nil || !known {
		return nil, false
	}
	o.count.Add(-1)
	return old, o.indexer.Delete(old) == nil
}

func (o *objects) replace(items map[string]any) ([]change, error) {
	var changes []change
	for _, key := range o.indexer.ListKeys() {
		if _, there := items[key]; !there {
			old, _, _ := o.indexer.GetByKey(key)
			changes = append(changes, change{key: key, old: old})
		}
	}
	list := make([]any, 0, len(items))
	for key, obj := range items {
		list = append(list, obj)
		old, known, _ := o.indexer.GetByKey(key)
		if !known || !sameVersion(old, obj) {
			changes = append(changes, change{key: key, old: old, now: obj})
		}
	}
	o.count.Store(int64(len(list)))
	return changes, o.indexer.Replace(list, "")
}

func (o *objects) has(key string) bool {
	_, known, _ := o.indexer.GetByKey(key)
	return known
}

func (o *objects) keys() []string         { return o.indexer.ListKeys() }
func (o *objects) len() int               { return int(o.count.Load()) }
func (o *objects) objects() cache.Indexer { return o.indexer }

// versions holds of each object a number that differs when its resourceVersion does.
type versions struct {
	mu    sync.RWMutex // guards byKey
	byKey map[string]uint64
}

func newVersions() *versions { return &versions{byKey: map[string]uint64{}} }

func (v *versions) put(key string, obj any) (old any, same bool, err error) {
	version := numberOf(versionOf(obj))
	v.mu.Lock()
	defer v.mu.Unlock()
	before, known := v.byKey[key]
	v.byKey[key] = version
	if !known {
		return nil, false, nil
	}
	return stub(key), before == version, nil
}

func (v *versions) delete(key string) (any, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, known := v.byKey[key]; !known {
		return nil, false
	}
	delete(v.byKey, key)
	return stub(key), true
}

func (v *versions) replace(items map[string]any) ([]change, error) {
	byKey := make(map[string]uint64, len(items))
	for key, obj := range items {
		byKey[key] = numberOf(versionOf(obj))
	}
	v.mu.Lock()
	before := v.byKey
	v.byKey = byKey
	v.mu.Unlock()

	var changes []change
	for key := range before {
		if _, there := items[key]; !there {
			changes = append(changes, change{key: key, old: stub(key)})
		}
	}
	for key, obj := range items {
		switch version, known := before[key]; {
		case !known:
			changes = append(changes, change{key: key, now: obj})
		case version != byKey[key]:
			changes = append(changes, change{key: key, old: stub(key), now: obj})
		}
	}
	return changes, nil
}

func (v *versions) has(key string) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	_, known := v.byKey[key]
	return known
}

func (v *versions) keys() []string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	keys := make([]string, 0, len(v.byKey))
	for key := range v.byKey {
		keys = append(keys, key)
	}
	return keys
}

func (v *versions) len() int {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return len(v.byKey)
}

func (v *versions) objects() cache.Indexer { return nil }

// stubOf stands for an object of which only the key is known, in the shape that a depth keeps.
func stubOf(depth Depth, key string) any {
	if depth != Full {
		return stub(key)
	}
	m := stub(key)
	object := &unstructured.Unstructured{}
	object.SetNamespace(m.Namespace)
	object.SetName(m.Name)
	return object
}

func stub(key string) *metav1.PartialObjectMetadata {
	namespace, name, _ := cache.SplitMetaNamespaceKey(key)
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func versionOf(obj any) string {
	m, err := meta.Accessor(obj)
	if err != nil {
		return ""
	}
	return m.GetResourceVersion()
}

// sameVersion is false when a transform left no version to compare.
func sameVersion(a, b any) bool {
	version := versionOf(a)
	return version != "" && version == versionOf(b)
}

// numberOf is the version itself where it is a number, as Kubernetes says it is since 1.35, and else a hash of it.
func numberOf(version string) uint64 {
	if n, err := strconv.ParseUint(version, 10, 64); err == nil {
		return n
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(version))
	return h.Sum64()
}
