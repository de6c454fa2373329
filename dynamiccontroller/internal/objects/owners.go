package objects

import (
	"slices"

	"k8s.io/utils/ptr"
)

// Owner is one of the owner references of an object.
type Owner struct {
	Controller bool

	keys []string // possible keys of the owner, which is either cluster-scoped or in the object's namespace
	uid  uint64   // hash of the UID
}

// OwnersOf decodes the owner references of an object. No other fields are decoded.
func OwnersOf(r *Record) []Owner {
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

// IsSame reports whether both references are to the same object, whether or not they are controller references. They
// must belong to states of one object.
func (o *Owner) IsSame(other *Owner) bool {
	return o.uid == other.uid && slices.Equal(o.keys, other.keys)
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
