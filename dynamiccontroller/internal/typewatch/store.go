package typewatch

import (
	"strconv"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
)

// contents holds the objects of a store, or only their identities. It is safe for concurrent use by any number of
// readers and one writer.
type contents interface {
	// put stores an object. The result same reports whether that version of the object was already stored.
	put(key string, obj any) (old any, same bool)
	delete(key string) (old any, known bool)
	replace(items map[string]any)
	get(key string) (obj any, known bool)
	identity(key string) (identity, bool)
	keys() []string
	len() int
	hasObjects() bool
	list(namespace string) []any // all objects if namespace is empty
	mayHold(uid uint64) bool     // uid is the hash of a UID; see uidFilter
	ownedBy(uid string) []any
}

// change is a change to one object. For a new object, old is nil. For a deleted object, now is nil.
type change struct {
	key      string
	old, now any
}

// changesTo returns the changes that replace would make. An object has changed if its version differs. If byContent is
// set, a stored object has also changed if its content differs, because the API server returns different content at the
// same version after a change to the type's schema.
func changesTo(c contents, items map[string]any, byContent bool) []change {
	changes := missing(c, func(key string) bool { _, known := items[key]; return known })
	for key, obj := range items {
		before, known := c.identity(key)
		same := known && before.sameVersion(identityOf(obj))
		if same && (!byContent || !c.hasObjects()) {
			continue
		}
		old, _ := c.get(key)
		if !same || !sameContent(old, obj) {
			changes = append(changes, change{key: key, old: old, now: obj})
		}
	}
	return changes
}

// difference returns the changes between two contents. Objects with equal versions are compared by their metadata if
// both contents hold objects.
func difference(from, to contents) []change {
	changes := deletions(from, to)
	for _, key := range to.keys() {
		before, known := from.identity(key)
		after, _ := to.identity(key)
		same := known && before.sameVersion(after)
		if same && (!from.hasObjects() || !to.hasObjects()) {
			continue
		}
		old, _ := from.get(key)
		now, _ := to.get(key)
		if !same || !sameMetadata(old, now) {
			changes = append(changes, change{key: key, old: old, now: now})
		}
	}
	return changes
}

// deletions returns a deletion for each object that from holds and to does not hold.
func deletions(from, to contents) []change {
	return missing(from, func(key string) bool { _, known := to.identity(key); return known })
}

func missing(c contents, known func(key string) bool) (changes []change) {
	for _, key := range c.keys() {
		if !known(key) {
			old, _ := c.get(key)
			changes = append(changes, change{key: key, old: old})
		}
	}
	return changes
}

// objects indexes objects by key, by namespace and, after the first call to ownedBy, by owner.
type objects struct {
	store cache.ThreadSafeStore
	uidFilter
	count  atomic.Int64
	owners sync.Once // adds the index by owner
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
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	return &objects{store: cache.NewThreadSafeStore(indexers, cache.Indices{})}
}

func (o *objects) put(key string, obj any) (old any, same bool) {
	old, known := o.store.Get(key)
	if version := versionOf(obj); known && version != "" && version == versionOf(old) {
		return old, true
	}
	if !known {
		o.count.Add(1)
	}
	if o.add(identityOf(obj).uid) {
		o.resize(o.len()+1, func(add func(uint64)) {
			for _, stored := range o.store.List() {
				add(identityOf(stored).uid)
			}
			add(identityOf(obj).uid)
		})
	}
	o.store.Update(key, obj)
	return old, false
}

func (o *objects) delete(key string) (any, bool) {
	old, known := o.store.Get(key)
	if known {
		o.count.Add(-1)
		o.store.Delete(key)
	}
	return old, known
}

func (o *objects) replace(items map[string]any) {
	o.count.Store(int64(len(items)))
	o.resize(len(items), func(add func(uint64)) {
		for _, obj := range items {
			add(identityOf(obj).uid)
		}
	})
	o.store.Replace(items, "")
}

func (o *objects) identity(key string) (identity, bool) {
	obj, known := o.store.Get(key)
	if !known {
		return identity{}, false
	}
	return identityOf(obj), true
}

func (o *objects) list(namespace string) []any {
	if namespace == "" {
		return o.store.List()
	}
	found, _ := o.store.ByIndex(cache.NamespaceIndex, namespace)
	return found
}

func (o *objects) ownedBy(uid string) []any {
	// AddIndexers fails only if the index already exists.
	o.owners.Do(func() { _ = o.store.AddIndexers(cache.Indexers{ownerIndex: ownersOf}) })
	owned, _ := o.store.ByIndex(ownerIndex, uid)
	return owned
}

func (o *objects) get(key string) (any, bool) { return o.store.Get(key) }
func (o *objects) keys() []string             { return o.store.ListKeys() }
func (o *objects) len() int                   { return int(o.count.Load()) }
func (o *objects) hasObjects() bool           { return true }

// identity holds a number for the resourceVersion of an object and a number for its UID. If two resourceVersions
// differ, so do their numbers.
type identity struct{ version, uid uint64 }

// sameVersion reports whether the versions are equal. It returns false if there is no version, because a transform can
// remove it.
func (i identity) sameVersion(other identity) bool {
	return i.version != 0 && i.version == other.version
}

func identityOf(obj any) identity {
	m, err := meta.Accessor(obj)
	if err != nil {
		return identity{}
	}
	return identity{version: numberOf(m.GetResourceVersion()), uid: hashOf(string(m.GetUID()))}
}

// identities holds only the identities of objects.
type identities struct {
	uidFilter
	mu    sync.RWMutex // guards byKey
	byKey map[string]identity
}

func newIdentities() *identities { return &identities{byKey: map[string]identity{}} }

func (i *identities) put(key string, obj any) (old any, same bool) {
	after := identityOf(obj)
	i.mu.Lock()
	before, known := i.byKey[key]
	full := i.add(after.uid)
	i.byKey[key] = after
	if full {
		i.resizeFor(i.byKey)
	}
	i.mu.Unlock()
	if !known {
		return nil, false
	}
	return stubOf(key), before.sameVersion(after)
}

func (i *identities) delete(key string) (any, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, known := i.byKey[key]; !known {
		return nil, false
	}
	delete(i.byKey, key)
	return stubOf(key), true
}

func (i *identities) replace(items map[string]any) {
	byKey := make(map[string]identity, len(items))
	for key, obj := range items {
		byKey[key] = identityOf(obj)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.resizeFor(byKey)
	i.byKey = byKey
}

func (i *identities) resizeFor(byKey map[string]identity) {
	i.resize(len(byKey), func(add func(uint64)) {
		for _, id := range byKey {
			add(id.uid)
		}
	})
}

func (i *identities) identity(key string) (identity, bool) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	id, known := i.byKey[key]
	return id, known
}

func (i *identities) get(key string) (any, bool) {
	if _, known := i.identity(key); !known {
		return nil, false
	}
	return stubOf(key), true
}

func (i *identities) keys() []string {
	i.mu.RLock()
	defer i.mu.RUnlock()
	keys := make([]string, 0, len(i.byKey))
	for key := range i.byKey {
		keys = append(keys, key)
	}
	return keys
}

func (i *identities) len() int {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return len(i.byKey)
}

func (i *identities) list(string) []any    { return nil }
func (i *identities) ownedBy(string) []any { return nil }
func (i *identities) hasObjects() bool     { return false }

func versionOf(obj any) string {
	m, err := meta.Accessor(obj)
	if err != nil {
		return ""
	}
	return m.GetResourceVersion()
}

// numberOf converts a resourceVersion to a number. A version that is a number, as in every Kubernetes API since 1.35,
// is returned as it is. For any other version, numberOf returns a hash, and for an empty version it returns 0.
func numberOf(version string) uint64 {
	if version == "" {
		return 0
	}
	if n, err := strconv.ParseUint(version, 10, 64); err == nil {
		return n
	}
	return hashOf(version)
}

// hashOf returns the FNV-1a hash of s.
func hashOf(s string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	hash := uint64(offset)
	for i := range len(s) {
		hash = (hash ^ uint64(s[i])) * prime
	}
	return hash
}

// hasUID reports whether the contents hold an object with the key, and the hash of its UID is uid.
func hasUID(c contents, key string, uid uint64) bool {
	if !c.mayHold(uid) {
		return false
	}
	id, known := c.identity(key)
	return known && id.uid == uid
}

// uidFilter reports, without taking a lock, whether an object with a UID can be stored. It speeds up the search for
// owners: a child type can have a thousand owner types, and for each event the owner is looked up in the stores of all
// of them. The filter is a Bloom filter with one hash function: about one in ten unknown UIDs passes the filter and is
// then looked up in the contents. There can be any number of readers and one writer.
type uidFilter struct {
	bits atomic.Pointer[[]atomic.Uint64]
	free int // number of bits that can be set before the filter must grow
}

func (f *uidFilter) mayHold(uid uint64) bool {
	bits := f.bits.Load()
	return bits != nil && (*bits)[uid/64%uint64(len(*bits))].Load()&(1<<(uid%64)) != 0
}

// add adds a UID. It reports whether the caller must call resize.
func (f *uidFilter) add(uid uint64) (full bool) {
	if f.mayHold(uid) {
		return false
	}
	if f.free == 0 {
		return true
	}
	f.free--
	bits := *f.bits.Load()
	bits[uid/64%uint64(len(bits))].Or(1 << (uid % 64))
	return false
}

// resize replaces the filter with a new one. It contains the UIDs that fill adds, and has room for about as many more.
func (f *uidFilter) resize(n int, fill func(add func(uid uint64))) {
	bits := make([]atomic.Uint64, n/4+1) // 16 bits per UID
	fill(func(uid uint64) { bits[uid/64%uint64(len(bits))].Or(1 << (uid % 64)) })
	f.free = n + 8
	f.bits.Store(&bits)
}
