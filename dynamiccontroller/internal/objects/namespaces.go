package objects

import "strings"

// replaceNamespace replaces the objects of a namespace and keeps the objects of other namespaces.
func (s *Store) replaceNamespace(namespace string, records map[string]*Record, kept map[string]identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.keysLocked() {
		if isIn(namespace, key) {
			s.removeLocked(key)
		}
	}
	for key, r := range records {
		s.insertLocked(key, r)
	}
	for key, id := range kept {
		s.identities[key] = id
		s.size += identitySize(key)
	}
	s.refillFilterLocked()
}

// hasOthers reports whether the store holds objects of other namespaces.
func (s *Store) hasOthers(namespace string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for key := range s.records {
		if !isIn(namespace, key) {
			return true
		}
	}
	for key := range s.identities {
		if !isIn(namespace, key) {
			return true
		}
	}
	return false
}

// isIn reports whether a key belongs to a namespace. An empty namespace means all namespaces.
func isIn(namespace, key string) bool {
	rest, found := strings.CutPrefix(key, namespace)
	return namespace == "" || found && strings.HasPrefix(rest, "/")
}
