package objects

import "strings"

// Identify returns the keys of the stored objects of a namespace, or of all namespaces if namespace is empty, that the
// unusable records are versions of. A record and a stored object are versions of the same object if their UIDs are
// equal, or if their keys are equal and a UID is unknown. If complete is false, the records may also be versions of
// other stored objects, because the identity of a record or the UID of a stored object is unknown.
func (s *Store) Identify(namespace string, unusable []*Record) (keys []string, complete bool) {
	complete = true
	wanted := map[uint64]bool{} // by the hash of the UID; true if the key is unknown
	for _, r := range unusable {
		key, uid := r.Identity()
		if namespace != "" && !strings.Contains(key, "/") {
			key = ""
		}
		id := identity{uid: hashOf(string(uid))}
		switch stored, known := s.identity(key); {
		case known && isIn(namespace, key) && !stored.recreated(id):
			keys = append(keys, strings.Clone(key))
		case id.uid != noUID:
			wanted[id.uid] = key == ""
		case key == "":
			complete = false
		}
	}
	if len(wanted) > 0 {
		found, foundAll := s.findUIDs(namespace, wanted)
		keys, complete = append(keys, found...), complete && foundAll
	}
	return keys, complete
}

// findUIDs returns the keys of the objects with the given UIDs. If complete is false, the object with a UID whose value
// is true was not found, but there are objects whose UID is unknown.
func (s *Store) findUIDs(namespace string, uids map[uint64]bool) (keys []string, complete bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	unknown := false
	visit := func(key string, uid uint64) {
		if !isIn(namespace, key) {
			return
		}
		unknown = unknown || uid == noUID
		if _, found := uids[uid]; found {
			keys = append(keys, key)
			uids[uid] = false
		}
	}
	for key, id := range s.identities {
		visit(key, id.uid)
	}
	for key, r := range s.records {
		visit(key, hashOf(string(r.GetUID())))
	}
	if unknown {
		for _, missing := range uids {
			if missing {
				return keys, false
			}
		}
	}
	return keys, true
}

// IsRecreated reports whether the store holds another object of the same name, whose UID differs from the record's.
func (s *Store) IsRecreated(r *Record) bool {
	stored, known := s.identity(r.Key())
	return known && stored.recreated(identityOf(r))
}

// CopyFrom stores the other store's version of an object, which this store must not hold. It returns the record.
func (s *Store) CopyFrom(other *Store, key string) *Record {
	r, known := other.Get(key)
	id, _ := other.identity(key)
	if !known {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keysOnly {
		s.identities[strings.Clone(key)] = id
		s.size += identitySize(key)
	} else {
		s.insertLocked(key, r)
	}
	if s.add(id.uid) {
		s.fillFilterLocked()
	}
	return r
}
