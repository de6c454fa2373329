package objects

import (
	"strconv"
	"strings"
)

// identity holds numbers derived from the resourceVersion and the UID of an object. Different resourceVersions have
// different numbers, apart from hash collisions; see numberOf.
type identity struct{ version, uid uint64 }

// sameVersion reports whether both are versions of the same object and are equal. It returns false if i has no version.
func (i identity) sameVersion(other identity) bool {
	return i.version != 0 && i.version == other.version && !i.recreated(other)
}

// recreated reports whether the UIDs differ, so that the object was deleted and created again. It returns false if a
// UID is unknown, for example because a transform has removed it.
func (i identity) recreated(other identity) bool {
	return i.uid != other.uid && i.uid != noUID && other.uid != noUID
}

// noUID is the hash of an empty UID.
var noUID = hashOf("")

func identityOf(r *Record) identity {
	return identity{version: numberOf(r.GetResourceVersion()), uid: hashOf(string(r.GetUID()))}
}

// stubOf returns a record that has only a namespace and a name.
func stubOf(key string) *Record {
	namespaceLen := max(strings.IndexByte(key, '/'), 0)
	return &Record{header: key, namespaceLen: uint32(namespaceLen), keyLen: uint32(len(key))}
}

// numberOf converts a resourceVersion to a number. A numeric version, as in every Kubernetes API since 1.35, is
// returned unchanged. For any other version, numberOf returns a hash, and for an empty version it returns 0.
func numberOf(version string) uint64 {
	if version == "" {
		return 0
	}
	if n, err := strconv.ParseUint(version, 10, 64); err == nil {
		return n
	}
	return hashOf(version)
}

// The slots of a large map are about 57% full on average.
const (
	recordEntry   = (16 + 8) * 7 / 4  // key and pointer
	identityEntry = (16 + 16) * 7 / 4 // key and identity
)

func recordSize(r *Record) int64    { return int64(recordEntry + r.Size()) }
func identitySize(key string) int64 { return int64(identityEntry + allocated(len(key))) }
