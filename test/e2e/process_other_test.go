//go:build unix && !linux

package e2e

import "syscall"

// ofThisProcess keeps a Ctrl-C from the child.
func ofThisProcess() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
