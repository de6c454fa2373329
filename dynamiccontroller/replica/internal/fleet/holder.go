package fleet

import (
	"strconv"
	"strings"

	"github.com/dynamic-controller/engine/internal/shards"
)

// Holder is the holder identity of the fleet's Lease. It records the layout, so that the holder and the layout change
// together.
type Holder struct {
	// Shards is the number of shards, at least 2.
	Shards int
	// Changing reports that the layout is about to change. Leaders of shards stop then, and no others begin.
	Changing bool
	// Leader is the identity of the fleet's leader. It is empty if the leader has released the Lease. The identity is not
	// empty then, so that replicas without shards do not acquire the Lease while shards are led.
	Leader string
}

const (
	holderPrefix   = "shards="
	holderChanging = ",changing"
)

// String returns the identity, such as "shards=8/my-pod_6f1c".
func (h Holder) String() string {
	s := holderPrefix + strconv.Itoa(h.Shards)
	if h.Changing {
		s += holderChanging
	}
	return s + "/" + h.Leader
}

// ParseHolder parses an identity. It reports whether the identity is one of a fleet. The identity of a replica without
// shards is not.
func ParseHolder(identity string) (h Holder, ok bool) {
	layout, leader, ok := strings.Cut(identity, "/")
	if !ok {
		return Holder{}, false
	}
	number, ok := strings.CutPrefix(layout, holderPrefix)
	if !ok {
		return Holder{}, false
	}
	number, h.Changing = strings.CutSuffix(number, holderChanging)
	count, err := strconv.Atoi(number)
	if err != nil || !ValidCount(count) {
		return Holder{}, false
	}
	h.Shards, h.Leader = count, leader
	return h, true
}

// ValidCount reports whether a fleet can have this number of shards: a power of two from 2 to the maximum.
func ValidCount(count int) bool { return count >= 2 && count <= shards.Max && count&(count-1) == 0 }
