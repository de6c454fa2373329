package main

import (
	"math"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/go-logr/logr"
)

// heapShare is the fraction of the container's memory limit that the Go runtime can use. The rest is for memory that
// the runtime does not count, and for allocations until the garbage collector catches up.
const heapShare = 0.9

// limitMemory makes the garbage collector work harder before the process reaches the memory limit of its container
// (cgroup v1 or v2), instead of letting the kernel kill it there. $GOMEMLIMIT takes precedence. It returns the limit that
// is in effect, in bytes: 0 if there is none.
func limitMemory(log logr.Logger) int64 {
	limit, err := memlimit.Set(memlimit.WithRatio(heapShare))
	if err != nil {
		log.Info("Memory limit of the container not found, set GOMEMLIMIT if there is one", "problem", err.Error())
	}
	if limit == math.MaxInt64 {
		return 0
	}
	log.Info("Memory limit set", "GOMEMLIMIT", limit)
	return limit
}
