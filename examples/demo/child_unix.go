//go:build unix && !linux

package main

import "syscall"

// ofThisProcess keeps a Ctrl-C from the child, which this process will end itself.
func ofThisProcess() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
