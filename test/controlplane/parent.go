package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"
)

// parentEnv names the environment variable that contains the process ID of the parent. Without this variable, a process
// whose parent exits early would mistake its adoptive parent for the original one.
const parentEnv = "CONTROLPLANE_PARENT"

// parentPID returns the ID of the process to watch, or 0 if the parent is process 1, which never exits.
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

// waitOrphaned waits until this process is no longer a child of pid, and then returns true. If ctx is cancelled first,
// it returns false. It polls instead of using Linux's parent-death signal, which is sent as soon as the thread that
// forked the child exits. In a Go program, that can happen at any time.
func waitOrphaned(ctx context.Context, pid int, getppid func() int) bool {
	if pid == 0 {
		<-ctx.Done()
		return false
	}
	const interval = 200 * time.Millisecond
	ticker := time.NewTicker(interval)
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

// exit exits the process without waiting for active requests. It is for processes whose parent has exited: no data is
// lost, and no clients are left.
func exit() { os.Exit(1) }

// exitWhenOrphaned calls exit when the parent of this process has exited, unless ctx is cancelled first.
func exitWhenOrphaned(ctx context.Context, exit func()) error {
	pid, err := parentPID()
	if err != nil {
		return err
	}
	go func() {
		if waitOrphaned(ctx, pid, os.Getppid) {
			exit()
		}
	}()
	return nil
}
