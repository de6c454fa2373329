package objects

import "sync/atomic"

// hashOf returns the FNV-1a hash of s.
func hashOf(s string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	hash := uint64(offset)
	for i := range len(s) {
		hash = (hash ^ uint64(s[i])) * prime
	}
	return hash
}

// uidFilter reports, without taking a lock, whether the store may hold an object with a UID. It speeds up the search
// for owners. A child type can have a thousand owner types, and for each event, the owner is looked up in the stores of
// all these types. The filter is a Bloom filter with one hash function: about one in ten unknown UIDs passes the filter
// and is then looked up in the store. There can be any number of readers and one writer at a time. To save memory in
// stores whose objects own nothing, the filter is not filled until the store is searched for the first time.
type uidFilter struct {
	bits atomic.Pointer[[]atomic.Uint64] // nil until the filter is filled
	free int                             // number of bits that can be set before the filter must grow
}

func (f *uidFilter) isFilled() bool { return f.bits.Load() != nil }

func (f *uidFilter) mayHold(uid uint64) bool {
	bits := f.bits.Load()
	return bits != nil && (*bits)[uid/64%uint64(len(*bits))].Load()&(1<<(uid%64)) != 0
}

// add adds a UID if the filter is filled. It reports whether the caller must call resize.
func (f *uidFilter) add(uid uint64) (full bool) {
	if !f.isFilled() || f.mayHold(uid) {
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

// resize replaces the filter with a new one that contains the n UIDs that fill adds. At least n more UIDs can be added
// before the filter must be resized again.
func (f *uidFilter) resize(n int, fill func(add func(uid uint64))) {
	bits := make([]atomic.Uint64, n/4+1) // 16 bits per UID
	fill(func(uid uint64) { bits[uid/64%uint64(len(bits))].Or(1 << (uid % 64)) })
	f.free = n + 8
	f.bits.Store(&bits)
}
