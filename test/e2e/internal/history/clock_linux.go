package history

import (
	"syscall"
	"unsafe"
)

// Now returns the time of CLOCK_MONOTONIC, which cannot be set. The monotonic time of package time uses the same clock
// but is relative to the start of the process.
func Now() Time {
	const clockMonotonic = 1
	var now syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)),
		0); errno != 0 {
		panic(errno) // Linux always provides this clock.
	}
	return Time(now.Nano())
}
