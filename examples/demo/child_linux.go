package main

import (
	"runtime"
	"syscall"
)

// The kernel ends a child when the thread that started it ends. The main thread, to which main is bound by this, ends
// with the process.
func init() { runtime.LockOSThread() }

// ofThisProcess keeps a Ctrl-C from the child, which this process will end itself, and ends the child should this
// process be killed.
func ofThisProcess() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
