package objects

import (
	"maps"
	"slices"
	"strings"
)

// minPending is the number of changes that an index collects even if its store holds few records.
const minPending = 64

// Index finds the records of a store by the values that a function returns for them. The function can be slow, hang or
// read the store, because it is called by Find, and no lock of the store is held during the call. The methods of an
// Index are safe for concurrent use, but the function must not call Find of its own index.
//
// The first call to Find evaluates all records. From then on, the store collects the records that have changed, and the
// next call to Find evaluates these. A record that changes several times between two calls is evaluated once.
//
// An index is reset by a list, and if the number of pending changes reaches about half the number of records in the
// store. An index that is reset costs nothing until the next call to Find, which evaluates all records again. An index
// that is no longer used therefore keeps no more than that number of outdated records in memory.
type Index struct {
	store    *Store
	evaluate func(*Record) []string

	// finding holds a value while Find is running, also while it calls the function. It is taken before the lock of the
	// store. It is a channel, so that a test in a synctest bubble can wait until other callers of Find are waiting.
	finding chan struct{}

	// Guarded by the lock of the store.
	contents *contents          // nil if the index has been reset; its fields are guarded by finding
	pending  map[string]*Record // by key, what contents does not reflect; a deleted record is nil
	dropped  bool
}

// contents is what an index has evaluated.
type contents struct {
	records index
	values  map[string][]string // by key; records without values are absent
}

// NewIndex returns an index of the store's records. With Keys, the index is empty.
func (s *Store) NewIndex(evaluate func(*Record) []string) *Index {
	return &Index{store: s, evaluate: evaluate, finding: make(chan struct{}, 1)}
}

// Find returns the records with a value. The result reflects a state that the store has had during the call. The
// function is called in the goroutine of the caller. A concurrent call to Find waits until it has returned.
//
// If the function panics or calls runtime.Goexit, Find does not return normally. The index is then reset.
func (i *Index) Find(value string) []*Record {
	i.finding <- struct{}{}
	defer func() { <-i.finding }()
	c, changes := i.take()
	complete := false
	defer func() {
		if !complete {
			i.reset()
		}
	}()
	for key, record := range changes {
		c.set(key, record, i.valuesOf(record))
	}
	complete = true
	return values(c.records[value])
}

func (i *Index) valuesOf(record *Record) []string {
	if record == nil {
		return nil
	}
	return i.evaluate(record)
}

// take returns the contents, and the changes that must be applied to them. It is called while finding is held.
func (i *Index) take() (c *contents, changes map[string]*Record) {
	if c := i.current(); c != nil {
		return c, nil
	}
	s := i.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if i.contents != nil {
		c, changes, i.pending = i.contents, i.pending, map[string]*Record{}
		return c, changes
	}
	c = &contents{records: index{}, values: map[string][]string{}}
	if !i.dropped {
		i.contents, i.pending = c, map[string]*Record{}
		s.indexes = append(s.indexes, i)
	}
	return c, maps.Clone(s.records)
}

// current returns the contents if no changes are pending.
func (i *Index) current() *contents {
	i.store.mu.RLock()
	defer i.store.mu.RUnlock()
	if len(i.pending) > 0 {
		return nil
	}
	return i.contents
}

// Drop resets the index for good: from then on, each call to Find evaluates all records. Drop does not wait for calls
// to Find that are running.
func (i *Index) Drop() {
	i.store.mu.Lock()
	i.dropped = true
	i.store.mu.Unlock()
	i.reset()
}

func (i *Index) reset() {
	s := i.store
	s.mu.Lock()
	defer s.mu.Unlock()
	i.resetLocked()
	s.indexes = slices.DeleteFunc(s.indexes, func(other *Index) bool { return other == i })
}

// resetLocked discards the contents. The caller must remove the index from the store's indexes.
func (i *Index) resetLocked() { i.contents, i.pending = nil, nil }

// collectLocked adds a change to the pending ones. It returns false if it has reset the index instead.
func (i *Index) collectLocked(c Change) bool {
	if c.New != nil {
		i.pending[c.New.Key()] = c.New
	} else {
		i.pending[c.Old.Key()] = nil
	}
	if len(i.pending) > max(i.store.lenLocked()/2, minPending) {
		i.resetLocked()
		return false
	}
	return true
}

// set replaces the values of a record. A deleted record is nil and has no values.
func (c *contents) set(key string, record *Record, values []string) {
	c.records.remove(key, c.values[key])
	delete(c.values, key) // the key is part of the former record
	if len(values) == 0 {
		return
	}
	kept := make([]string, len(values))
	for n, value := range values {
		kept[n] = strings.Clone(value) // it can be part of a larger string
	}
	c.records.add(record, kept)
	c.values[record.Key()] = kept
}
