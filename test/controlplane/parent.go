package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"
)

// parentEnv tells a process who started it. Without it a process whose parent ended before the first look would take
// whoever adopted it for its parent.
const parentEnv = "CONTROLPLANE_PARENT"

// parentPID returns the process to watch, or 0 if there is none: nobody outlives process 1.
func parentPID() (int, error) {
	text, given := os.LookupEnv(parentEnv)
	if !given {
		text = strconv.Itoa(os.Getppid())
	}
	pid, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", parentEnv, err)
	}
	if pid <= 1 {
		return 0, nil
	}
	return pid, nil
}

// waitOrphaned returns true once this process is not pid's child any more, false when ctx ends first. It polls:
// Linux' parent-death signal is sent when the thread that forked ends, which in a Go program may be at any time.
func waitOrphaned(ctx context.Context, pid int, getppid func() int) bool {
	if pid == 0 {
		<-ctx.Done()
		return false
	}
	const pause = 200 * time.Millisecond
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for getppid() == pid {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
	return true
}

// exitWhenOrphaned ends a server whose parent has ended. It does not wait for requests: nothing is lost by it, and
// nobody is left to be served.
func exitWhenOrphaned() error {
	pid, err := parentPID()
	if err != nil {
		return err
	}
	go func() {
		if waitOrphaned(context.Background(), pid, os.Getppid) {
			os.Exit(1)
		}
	}()
	return nil
}
