//go:build !linux

package history

import "time"

// Now returns the wall clock time, because other clocks shared by processes are not portable.
func Now() Time { return Time(time.Now().UnixNano()) }
