package main

import (
	"runtime"
	"syscall"
)

// The kernel kills a child when the thread that started it exits. main therefore stays on the main thread, which lives
// as long as the process.
func init() { runtime.LockOSThread() }

// childAttributes prevents Ctrl-C from reaching the child, because this process stops the child itself. The kernel
// kills the child if this process is killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
