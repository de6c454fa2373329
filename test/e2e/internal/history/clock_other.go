//go:build !linux

package history

import "time"

// Now reads the wall clock: what else processes share differs from system to system.
func Now() Time { return Time(time.Now().UnixNano()) }
