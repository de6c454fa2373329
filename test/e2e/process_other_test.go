//go:build unix && !linux

package e2e

import "syscall"

// childAttributes returns attributes that protect the child from Ctrl-C.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
