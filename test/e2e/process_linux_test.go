package e2e

import "syscall"

// ofThisProcess keeps a Ctrl-C from the child, and has the kernel end it, even one that is stopped, when the thread ends
// that started it.
func ofThisProcess() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
