//go:build unix && !linux

package main

import "syscall"

// childAttributes prevents Ctrl-C from reaching the child, because this process stops the child itself.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
