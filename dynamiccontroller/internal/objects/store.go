package objects

import (
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Store holds the records of a watch, or only their identities. It is safe for concurrent use by any number of readers
// and one writer at a time. Records that a reader has received do not change.
type Store struct {
	keysOnly bool
	uidFilter

	mu         sync.RWMutex // guards the fields below
	records    map[string]*Record
	identities map[string]identity // replaces records if keysOnly is true
	size       int64
	// The indexes are nil until they are used for the first time.
	byNamespace, byOwner index
	building             *[]Change // changes since the records were copied for a new index; nil if no index is being built
	indexes              []*Index  // those that have been used since they were last reset

	indexing sync.Mutex // held while an index is being built; taken before mu
}

// NewStore returns a store. With the projection Keys, the store holds only the key and 32 bytes per object.
func NewStore(projection Projection) *Store {
	return &Store{keysOnly: projection == Keys, records: map[string]*Record{}, identities: map[string]identity{}}
}

// Change is a change to one object. For a new object, Old is nil. For a deleted object, New is nil.
type Change struct {
	Key      string
	Old, New *Record
}

// Put stores a record and returns the changes: none if the store already holds this version with the same content, and
// a deletion and an addition if the object was deleted and created again. With Keys, the content is not compared.
func (s *Store) Put(r *Record) (changes []Change) {
	key, after := r.Key(), identityOf(r)
	before, known := s.identity(key)
	same := known && before.sameVersion(after)
	if same && !s.keysOnly { // compared without the lock, because there is only one writer
		if old, _ := s.Get(key); old.SameContent(r) {
			return nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.insertLocked(key, r)
	if s.add(after.uid) {
		s.fillFilterLocked()
	}
	switch {
	case same && s.keysOnly:
		return nil
	case known && before.recreated(after):
		return []Change{{Key: key, Old: old}, {Key: key, New: r}}
	default:
		return []Change{{Key: key, Old: old, New: r}}
	}
}

// insertLocked stores a record and returns the one that it replaces, if any. The caller must update the UID filter.
func (s *Store) insertLocked(key string, r *Record) (old *Record) {
	old = s.removeLocked(key)
	if s.keysOnly {
		s.identities[strings.Clone(key)] = identityOf(r) // key is a substring of the header
		s.size += identitySize(key)
		return old
	}
	s.records[key] = r
	s.size += recordSize(r)
	s.indexLocked(Change{New: r})
	return old
}

// Delete removes an object.
func (s *Store) Delete(key string) (old *Record, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old = s.removeLocked(key)
	return old, old != nil
}

// removeLocked removes an object and returns it, or nil if it was not stored.
func (s *Store) removeLocked(key string) *Record {
	old, known := s.getLocked(key)
	if !known {
		return nil
	}
	if s.keysOnly {
		delete(s.identities, key)
		s.size -= identitySize(key)
		return old
	}
	delete(s.records, key)
	s.size -= recordSize(old)
	s.indexLocked(Change{Old: old})
	return old
}

func (s *Store) indexLocked(c Change) {
	s.byNamespace.apply(c, namespaceOf)
	s.byOwner.apply(c, ownersOf)
	if s.building != nil {
		*s.building = append(*s.building, c)
	}
	if len(s.indexes) > 0 {
		s.indexes = slices.DeleteFunc(s.indexes, func(i *Index) bool { return !i.collectLocked(c) })
	}
}

// Replace replaces the objects of a namespace, or all objects if namespace is empty, with the given records. If a
// record is nil, the stored object is kept. The caller must not use the map afterwards.
func (s *Store) Replace(namespace string, records map[string]*Record) {
	kept := s.takeKept(records)
	if s.hasOthers(namespace) {
		s.replaceNamespace(namespace, records, kept)
		return
	}
	size, identities := int64(0), map[string]identity{}
	if s.keysOnly {
		identities = make(map[string]identity, len(records)+len(kept))
	}
	for key, id := range kept {
		identities[key] = id
		size += identitySize(key)
	}
	for key, r := range records {
		if s.keysOnly {
			identities[strings.Clone(key)] = identityOf(r) // key is a substring of the header
			size += identitySize(key)
		} else {
			size += recordSize(r)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size, s.identities = size, identities
	if !s.keysOnly {
		s.records, s.byNamespace, s.byOwner, s.building = records, nil, nil, nil
		for _, i := range s.indexes {
			i.resetLocked()
		}
		s.indexes = nil
	}
	s.refillFilterLocked()
}

// takeKept replaces each nil record with the stored one. With Keys, it removes the nil records and returns the stored
// identities instead.
func (s *Store) takeKept(records map[string]*Record) (kept map[string]identity) {
	for key, r := range records {
		if r != nil {
			continue
		}
		stored, known := s.Get(key)
		if known && !s.keysOnly {
			records[key] = stored
			continue
		}
		delete(records, key)
		if id, known := s.identity(key); known {
			if kept == nil {
				kept = map[string]identity{}
			}
			kept[strings.Clone(key)] = id
		}
	}
	return kept
}

// KeysIn returns the keys of the objects in a namespace, or of all objects if namespace is empty.
func (s *Store) KeysIn(namespace string) []string {
	return slices.DeleteFunc(s.Keys(), func(key string) bool { return !isIn(namespace, key) })
}

// refillFilterLocked replaces the UID filter after the objects have been replaced.
func (s *Store) refillFilterLocked() {
	if s.isFilled() {
		s.fillFilterLocked()
	}
}

// fillFilter fills the UID filter, unless another goroutine has just filled it.
func (s *Store) fillFilter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isFilled() {
		s.fillFilterLocked()
	}
}

func (s *Store) fillFilterLocked() {
	s.resize(s.lenLocked(), func(add func(uint64)) {
		for _, id := range s.identities {
			add(id.uid)
		}
		for _, r := range s.records {
			add(identityOf(r).uid)
		}
	})
}

// Get returns the record of an object. With Keys, the record has only the namespace and the name.
func (s *Store) Get(key string) (r *Record, known bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.getLocked(key)
}

func (s *Store) getLocked(key string) (*Record, bool) {
	if !s.keysOnly {
		r, known := s.records[key]
		return r, known
	}
	if _, known := s.identities[key]; !known {
		return nil, false
	}
	return stubOf(key), true
}

// Has reports whether the store holds an object.
func (s *Store) Has(key string) bool {
	_, known := s.identity(key)
	return known
}

// HasUID reports whether the store holds an object with this key and UID. If one of the two UIDs is unknown, the key
// decides.
func (s *Store) HasUID(key string, uid types.UID) bool {
	id, known := s.identity(key)
	return known && !id.recreated(identity{uid: hashOf(string(uid))})
}

func (s *Store) identity(key string) (id identity, known bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.identityLocked(key)
}

func (s *Store) identityLocked(key string) (id identity, known bool) {
	if s.keysOnly {
		id, known = s.identities[key]
	} else if r := s.records[key]; r != nil {
		id, known = identityOf(r), true
	}
	return id, known
}

// Keys returns the keys of all objects, in no particular order.
func (s *Store) Keys() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.keysLocked()
}

func (s *Store) keysLocked() []string {
	keys := make([]string, 0, s.lenLocked())
	for key := range s.identities {
		keys = append(keys, key)
	}
	for key := range s.records {
		keys = append(keys, key)
	}
	return keys
}

// Len returns the number of objects.
func (s *Store) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.lenLocked()
}

func (s *Store) lenLocked() int { return len(s.identities) + len(s.records) }

// Size returns the approximate memory that the objects use, in bytes.
func (s *Store) Size() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.size
}

// List returns the objects of a namespace, or all objects if namespace is empty. With Keys, the result is empty. The
// first call for a namespace builds an index of all namespaces.
func (s *Store) List(namespace string) []*Record {
	if namespace != "" {
		return s.lookUp(&s.byNamespace, namespaceOf, namespace)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return values(s.records)
}

// All returns all objects. With Keys, the records have only the namespace and the name.
func (s *Store) All() []*Record {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.keysOnly {
		return values(s.records)
	}
	all := make([]*Record, 0, len(s.identities))
	for key := range s.identities {
		all = append(all, stubOf(key))
	}
	return all
}

// OwnedBy returns the objects that have an owner reference with the UID. With Keys, the result is empty. The first call
// builds an index.
func (s *Store) OwnedBy(owner types.UID) []*Record {
	return s.lookUp(&s.byOwner, ownersOf, string(owner))
}

func (s *Store) lookUp(i *index, valuesOf func(*Record) []string, value string) []*Record {
	s.mu.RLock()
	built, found := *i != nil, values((*i)[value])
	s.mu.RUnlock()
	if built {
		return found
	}
	s.build(i, valuesOf)
	return s.lookUp(i, valuesOf, value)
}

// build builds an index. With many objects, this takes seconds, during which the store can be read and changed. If
// Replace is called in the meantime, the index is discarded.
func (s *Store) build(i *index, valuesOf func(*Record) []string) {
	s.indexing.Lock()
	defer s.indexing.Unlock()
	s.mu.Lock()
	if *i != nil {
		s.mu.Unlock()
		return
	}
	records, changes, built := values(s.records), &[]Change{}, index{}
	s.building = changes
	s.mu.Unlock()
	for _, r := range records {
		built.apply(Change{New: r}, valuesOf)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.building != changes {
		return
	}
	for _, c := range *changes {
		built.apply(c, valuesOf)
	}
	*i, s.building = built, nil
}

func values(records map[string]*Record) []*Record {
	found := make([]*Record, 0, len(records))
	for _, r := range records {
		found = append(found, r)
	}
	return found
}

// index maps each value, such as a namespace, to the records with that value. The inner map's key is the object's key.
type index map[string]map[string]*Record

// apply removes the old record and adds the new one. It does nothing if the index is nil.
func (i index) apply(c Change, valuesOf func(*Record) []string) {
	if i == nil {
		return
	}
	if c.Old != nil {
		i.remove(c.Old.Key(), valuesOf(c.Old))
	}
	if c.New != nil {
		i.add(c.New, valuesOf(c.New))
	}
}

// add adds a record with the given values.
func (i index) add(r *Record, values []string) {
	for _, value := range values {
		if i[value] == nil {
			i[value] = map[string]*Record{}
		}
		i[value][r.Key()] = r
	}
}

// remove removes the record with the key, which has the given values.
func (i index) remove(key string, values []string) {
	for _, value := range values {
		if delete(i[value], key); len(i[value]) == 0 {
			delete(i, value)
		}
	}
}

func namespaceOf(r *Record) []string { return []string{r.GetNamespace()} }

func ownersOf(r *Record) []string {
	references := r.GetOwnerReferences()
	uids := make([]string, len(references))
	for i := range references {
		uids[i] = string(references[i].UID)
	}
	return uids
}

// DeletionsIn returns a deletion for each object that Replace would remove, or replace with another one of the same
// name.
func (s *Store) DeletionsIn(namespace string, records map[string]*Record) []Change {
	return s.missing(func(key string, id identity) bool {
		r, listed := records[key]
		return !isIn(namespace, key) || listed && (r == nil || !id.recreated(identityOf(r)))
	})
}

// Updates returns a change for each object that Replace would add or change. An object that was deleted and created
// again counts as added. An object changes if its version or its content differs. After a change to the type's schema,
// the API server returns different content at the same version. With Keys, only versions are compared.
func (s *Store) Updates(records map[string]*Record) (changes []Change) {
	for key, r := range records {
		if r == nil {
			continue
		}
		before, known := s.identity(key)
		after := identityOf(r)
		// A server without resourceVersions is polled. Keys have no content that could be compared.
		unversioned := before.version == 0 && after.version == 0 && !before.recreated(after) && !s.keysOnly
		same := known && (before.sameVersion(after) || unversioned)
		if same && s.keysOnly {
			continue
		}
		old, _ := s.Get(key)
		if known && before.recreated(after) {
			old = nil
		}
		if !same || !old.SameContent(r) {
			changes = append(changes, Change{Key: key, Old: old, New: r})
		}
	}
	return changes
}

// Difference returns the changes from this store to another one. An object that was deleted and created again is
// returned as a deletion, among the first changes, and an addition. If both stores hold records, objects with equal
// versions are compared by their content or, if byContent is false, by their metadata.
func (s *Store) Difference(to *Store, byContent bool) []Change {
	changes := s.Deletions(to)
	for _, key := range to.Keys() {
		before, known := s.identity(key)
		after, _ := to.identity(key)
		same := known && before.sameVersion(after)
		if same && (s.keysOnly || to.keysOnly) {
			continue
		}
		old, _ := s.Get(key)
		now, _ := to.Get(key)
		if known && before.recreated(after) {
			old = nil
		}
		if !same || byContent && !old.SameContent(now) || !byContent && !old.SameMetadata(now) {
			changes = append(changes, Change{Key: key, Old: old, New: now})
		}
	}
	return changes
}

// Deletions returns a deletion for each object that is not in the other store, or that was deleted and created again.
func (s *Store) Deletions(to *Store) []Change {
	return s.missing(func(key string, id identity) bool {
		now, known := to.identity(key)
		return known && !id.recreated(now)
	})
}

func (s *Store) missing(has func(key string, id identity) bool) (changes []Change) {
	for _, key := range s.Keys() {
		if id, known := s.identity(key); known && !has(key, id) {
			old, _ := s.Get(key)
			changes = append(changes, Change{Key: key, Old: old})
		}
	}
	return changes
}
