// Package persistent provides an immutable map with string keys.
//
// [Map.With] returns a changed copy of a map that shares all unaffected parts with the original. Its cost grows with
// the number of changes and only logarithmically with the size of the map. Any number of goroutines can read a map
// without locks, even while copies of it are being made.
//
// A map is a hash trie with 32 children per branch. A map of up to 16 entries is a single leaf, so small maps cost
// little more than a slice of their entries.
package persistent
