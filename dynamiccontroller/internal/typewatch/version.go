package typewatch

import (
	"math"
	"strconv"
)

// version is a resourceVersion parsed as a number, so that it can be read and compared without a lock.
type version uint64

const (
	none      version = 0              // no version has been received
	unordered version = math.MaxUint64 // a version that cannot be compared; it is never replaced by an event's version
)

func versionNumber(resourceVersion string) version {
	if resourceVersion == "" || resourceVersion == "0" { // "0" is the version of an empty fake server
		return none
	}
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil || resourceVersion[0] == '0' { // numbers have no leading zeros
		return unordered
	}
	return version(n)
}

// isNewer reports whether v is newer than its argument. It returns false if the versions cannot be compared.
func (v version) isNewer(than version) bool { return v != unordered && v > than }

func (v version) String() string {
	switch v {
	case none:
		return ""
	case unordered:
		return "unordered"
	default:
		return strconv.FormatUint(uint64(v), 10)
	}
}
