package typewatch

import (
	"hash/fnv"
	"strconv"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// contents is what a store holds: objects, or their versions alone. Reads may come from anywhere, changes from one
// goroutine at a time.
type contents interface {
	put(key string, obj any) (old any, same bool, err error) // same: the version is the one that is there
	delete(key string) (old any, known bool)
	// changes returns the changes that replace would make. An object has changed if its version differs. With byContent, it
	// has also changed if its content differs: after a change of the type's schema, the API server returns different content
	// at the same version.
	changes(items map[string]any, byContent bool) []change
	replace(items map[string]any) error
	get(key string) (obj any, known bool)
	version(key string) (version uint64, known bool)
	hasUID(key string, uid types.UID) bool
	keys() []string
	len() int
	objects() cache.Indexer
	ownedBy(uid string) []any // the objects that have the owner among theirs
}

// change is what became of an object: new when old is nil, deleted when now is.
type change struct {
	key      string
	old, now any
}

// difference returns the changes from one contents to another. Objects with equal versions are compared by their metadata, which
// is what both contents hold of them, unless one holds only versions.
func difference(from, to contents) (changes []change) {
	byMetadata := from.objects() != nil && to.objects() != nil
	for _, key := range from.keys() {
		if _, there := to.version(key); !there {
			old, _ := from.get(key)
			changes = append(changes, change{key: key, old: old})
		}
	}
	for _, key := range to.keys() {
		before, known := from.version(key)
		now, there := to.version(key)
		if !there || known && before == now && !byMetadata {
			continue
		}
		c := change{key: key}
		if known {
			c.old, _ = from.get(key)
		}
		c.now, _ = to.get(key)
		if !known || before != now || !sameContent(view(Metadata, c.old), view(Metadata, c.now)) {
			changes = append(changes, c)
		}
	}
	return changes
}

// objects holds whole objects, by key, by namespace and, once somebody asks for that, by owner.
type objects struct {
	indexer cache.Indexer
	count   atomic.Int64
	owners  sync.Once // makes the index by owner when it is asked for first
}

// ownerIndex finds objects by the UIDs of all their owners.
const ownerIndex = "owner"

func ownersOf(obj any) ([]string, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	references := m.GetOwnerReferences()
	uids := make([]string, len(references))
	for i := range references {
		uids[i] = string(references[i].UID)
	}
	return uids, nil
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

func (o *objects) changes(items map[string]any, byContent bool) (changes []change) {
	for _, key := range o.indexer.ListKeys() {
		if _, there := items[key]; !there {
			old, _, _ := o.indexer.GetByKey(key)
			changes = append(changes, change{key: key, old: old})
		}
	}
	for key, obj := range items {
		old, known, _ := o.indexer.GetByKey(key)
		if !known || !sameVersion(old, obj) || byContent && !sameContent(old, obj) {
			changes = append(changes, change{key: key, old: old, now: obj})
		}
	}
	return changes
}

func (o *objects) replace(items map[string]any) error {
	list := make([]any, 0, len(items))
	for _, obj := range items {
		list = append(list, obj)
	}
	o.count.Store(int64(len(list)))
	return o.indexer.Replace(list, "")
}

func (o *objects) get(key string) (any, bool) {
	obj, known, _ := o.indexer.GetByKey(key)
	return obj, known
}

func (o *objects) version(key string) (uint64, bool) {
	obj, known := o.get(key)
	if !known {
		return 0, false
	}
	return numberOf(versionOf(obj)), true
}

func (o *objects) hasUID(key string, uid types.UID) bool {
	obj, known := o.get(key)
	if !known {
		return false
	}
	m, err := meta.Accessor(obj)
	return err == nil && m.GetUID() == uid
}

func (o *objects) ownedBy(uid string) []any {
	o.owners.Do(func() {
		// It fails for an index that there is already, and for nothing else.
		_ = o.indexer.AddIndexers(cache.Indexers{ownerIndex: ownersOf})
	})
	owned, _ := o.indexer.ByIndex(ownerIndex, uid)
	return owned
}

func (o *objects) keys() []string         { return o.indexer.ListKeys() }
func (o *objects) len() int               { return int(o.count.Load()) }
func (o *objects) objects() cache.Indexer { return o.indexer }

// versions holds of each object two numbers, one that differs when its resourceVersion does and one for its UID.
type versions struct {
	mu    sync.RWMutex // guards byKey
	byKey map[string]identity
}

type identity struct{ version, uid uint64 }

func identityOf(obj any) identity {
	m, err := meta.Accessor(obj)
	if err != nil {
		return identity{}
	}
	return identity{version: numberOf(m.GetResourceVersion()), uid: hashOf(string(m.GetUID()))}
}

func newVersions() *versions { return &versions{byKey: map[string]identity{}} }

func (v *versions) put(key string, obj any) (old any, same bool, err error) {
	now := identityOf(obj)
	v.mu.Lock()
	defer v.mu.Unlock()
	before, known := v.byKey[key]
	v.byKey[key] = now
	if !known {
		return nil, false, nil
	}
	return stub(key), before.version == now.version, nil
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

// changes compares only versions, because no content is stored.
func (v *versions) changes(items map[string]any, _ bool) (changes []change) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for key := range v.byKey {
		if _, there := items[key]; !there {
			changes = append(changes, change{key: key, old: stub(key)})
		}
	}
	for key, obj := range items {
		switch old, known := v.byKey[key]; {
		case !known:
			changes = append(changes, change{key: key, now: obj})
		case old.version != identityOf(obj).version:
			changes = append(changes, change{key: key, old: stub(key), now: obj})
		}
	}
	return changes
}

func (v *versions) replace(items map[string]any) error {
	byKey := make(map[string]identity, len(items))
	for key, obj := range items {
		byKey[key] = identityOf(obj)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.byKey = byKey
	return nil
}

func (v *versions) identity(key string) (identity, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	i, known := v.byKey[key]
	return i, known
}

func (v *versions) get(key string) (any, bool) {
	if _, known := v.identity(key); !known {
		return nil, false
	}
	return stub(key), true
}

func (v *versions) version(key string) (uint64, bool) {
	i, known := v.identity(key)
	return i.version, known
}

func (v *versions) hasUID(key string, uid types.UID) bool {
	i, known := v.identity(key)
	return known && i.uid == hashOf(string(uid))
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
func (v *versions) ownedBy(string) []any   { return nil }

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
	return hashOf(version)
}

func hashOf(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return h.Sum64()
}
