//go:build unix && !linux

package docs

import "syscall"

// childAttributes returns attributes that protect the child from Ctrl-C.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
