package docs

import "syscall"

// childAttributes returns attributes that protect the child from Ctrl-C. When the thread that started the child exits,
// the kernel kills the child.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
