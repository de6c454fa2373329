package objects

import "k8s.io/utils/ptr"

// Owner is one of the owner references of an object.
type Owner struct {
	Controller bool

	keys []string // possible keys of the owner, which is either cluster-scoped or in the object's namespace
	uid  uint64   // hash of the UID
}

// OwnerCache caches the owners of an object before and after a change. They are computed only once, even if they are
// looked up in many stores. An OwnerCache is not safe for concurrent use.
type OwnerCache struct {
	entries [2]struct {
		record *Record
		owners []Owner
	}
	next int
}

// Get returns the owners of an object. The result must not be modified.
func (c *OwnerCache) Get(r *Record) []Owner {
	for i := range c.entries {
		if c.entries[i].record == r {
			return c.entries[i].owners
		}
	}
	owners := findOwners(r)
	c.entries[c.next].record, c.entries[c.next].owners = r, owners
	c.next = (c.next + 1) % len(c.entries)
	return owners
}

func findOwners(r *Record) []Owner {
	references := r.OwnerReferences()
	owners := make([]Owner, len(references))
	for i, o := range references {
		owners[i] = Owner{Controller: ptr.Deref(o.Controller, false), keys: []string{o.Name}, uid: hashOf(string(o.UID))}
		if namespace := r.GetNamespace(); namespace != "" {
			owners[i].keys = append(owners[i].keys, namespace+"/"+o.Name)
		}
	}
	return owners
}

// FindOwner returns the owner's key if the store holds the owner, which is identified by its UID. If the store holds no
// object with that UID, FindOwner usually takes no lock. The first call fills the UID filter.
func (s *Store) FindOwner(o *Owner) (key string, known bool) {
	if !s.isFilled() {
		s.fillFilter()
	}
	if !s.mayHold(o.uid) {
		return "", false
	}
	for _, key := range o.keys {
		if id, known := s.identity(key); known && id.uid == o.uid {
			return key, true
		}
	}
	return "", false
}
