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

// pidFile names the process that runs a part, and is locked as long as that process lives. So the file a killed process
// left behind is never taken for a running one, and a pid that now belongs to somebody else is never signalled.
type pidFile struct {
	file *os.File
}

var errRunning = errors.New("already runs")

// lockPIDFile takes the file for this process. A process that holds it has until wait to end: the servers of an "up"
// that was killed need a moment to notice.
func lockPIDFile(path string, wait time.Duration) (*pidFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	const pause = 20 * time.Millisecond
	for deadline := time.Now().Add(wait); ; time.Sleep(pause) {
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
	if err := f.Truncate(0); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := fmt.Fprintln(f, os.Getpid()); err != nil {
		f.Close()
		return nil, err
	}
	return &pidFile{file: f}, nil
}

// release lets another process take the file. A process that ends releases it without being asked.
func (p *pidFile) release() { p.file.Close() }
