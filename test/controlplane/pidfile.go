package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
)

// pidFile is a file that contains the ID of the process that runs a component. The file is locked while that process is
// running. The lock distinguishes the file of a running process from the stale file of a killed process, whose ID may
// now belong to another process.
type pidFile struct {
	file *os.File
}

var errRunning = errors.New("already running")

// lockPIDFile locks the file and writes the ID of this process to it. It waits up to the given time for another process
// to release the lock, because the servers take a moment to exit after "up" is killed.
func lockPIDFile(path string, wait time.Duration) (*pidFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	const interval = 20 * time.Millisecond
	for deadline := time.Now().Add(wait); ; time.Sleep(interval) {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(deadline) {
			pid, _ := io.ReadAll(f)
			f.Close()
			if errors.Is(err, syscall.EWOULDBLOCK) {
				err = errRunning
			}
			return nil, fmt.Errorf("%w: process %s (%s)", err, strings.TrimSpace(string(pid)), path)
		}
	}
	p := &pidFile{file: f}
	if err := p.write(os.Getpid()); err != nil {
		f.Close()
		return nil, err
	}
	return p, nil
}

// write replaces the process ID in the file.
func (p *pidFile) write(pid int) error {
	if err := p.file.Truncate(0); err != nil {
		return err
	}
	_, err := p.file.WriteAt(fmt.Appendln(nil, pid), 0)
	return err
}

// release unlocks the file. The kernel also releases the lock when the process exits.
func (p *pidFile) release() { p.file.Close() }
