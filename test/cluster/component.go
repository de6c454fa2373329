package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Errors returned by a Component.
var (
	// ErrExternal is returned for the components of an external cluster, which cannot be stopped or started.
	ErrExternal = errors.New("the cluster is external (" + kubeconfigEnv + "): its components cannot be controlled")
	// ErrNotRunning is returned if the component has no running process.
	ErrNotRunning = errors.New("not running")
	// ErrRunning is returned by Start if the component is already running.
	ErrRunning = errors.New("already running")
)

// Component is one of the two servers of a cluster: the API server or etcd. Its methods can be called concurrently, but
// run one at a time.
type Component struct {
	name string // The binary's command, and the base name of the component's files.
	dir  string // Empty for an external cluster.

	mu       sync.Mutex // Held while a method runs.
	started  *process   // The process that the last call to Start started.
	released bool       // Set when the cluster is stopped.
}

// PID returns the ID of the component's process, or ErrNotRunning.
func (c *Component) PID() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pidLocked()
}

// Kill sends SIGKILL to the component and waits until it has exited.
func (c *Component) Kill() error {
	return c.end(syscall.SIGKILL)
}

// Stop sends SIGTERM to the component, followed by SIGKILL after 5 s, and waits until it has exited.
func (c *Component) Stop() error {
	return c.end(syscall.SIGTERM)
}

// Pause sends SIGSTOP to the component and, on Linux, waits until it has stopped. Its connections stay open, but it
// does not respond.
func (c *Component) Pause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.signalLocked(syscall.SIGSTOP); err != nil {
		return err
	}
	return c.waitStoppedLocked()
}

// waitStoppedLocked waits until the process has stopped. On a busy machine, its threads continue until the one that
// receives the signal is scheduled.
func (c *Component) waitStoppedLocked() error {
	const interval = time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for deadline := time.Now().Add(componentGrace); ; <-ticker.C {
		pid, err := c.pidLocked()
		if err != nil {
			return err
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // not Linux
		}
		if err != nil {
			return fmt.Errorf("state of %s (process %d): %w", c.name, pid, err)
		}
		// The state follows the name of the program, which is in parentheses.
		if bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" T ")) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s (process %d) has not stopped within %s", c.name, pid, componentGrace)
		}
	}
}

// Resume continues a paused component.
func (c *Component) Resume() error {
	return c.signal(syscall.SIGCONT)
}

// Start restarts the component as a child of this process, with the same port and data. It returns when the component
// is ready to serve requests. For etcd, this does not mean that the API server has reconnected: use Cluster.WaitReady
// to wait for both.
func (c *Component) Start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.released {
		return fmt.Errorf("start %s: the cluster has been stopped", c.name)
	}
	switch _, err := c.pidLocked(); {
	case err == nil:
		return fmt.Errorf("start %s: %w", c.name, ErrRunning)
	case !errors.Is(err, ErrNotRunning):
		return err
	}
	log, err := os.OpenFile(filepath.Join(c.dir, c.name+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", c.name, err)
	}
	defer log.Close() // The child has its own file descriptor.
	started, err := startProcess(log, func(line string) bool { return strings.HasSuffix(line, " is ready") },
		c.name, "--dir", c.dir)
	if err != nil {
		return fmt.Errorf("start %s: %w", c.name, err)
	}
	c.started = started
	return started.waitReady(ctx, 0, func() string { // A component that is not ready needs no graceful shutdown.
		var end tail
		data, err := os.ReadFile(log.Name())
		_, _ = end.Write(data) // Write never fails.
		if err != nil {
			return err.Error()
		}
		return end.String()
	})
}

func (c *Component) signal(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.signalLocked(sig)
}

func (c *Component) signalLocked(sig syscall.Signal) error {
	pid, err := c.pidLocked()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, sig); err != nil {
		return fmt.Errorf("send %s to %s (process %d): %w", sig, c.name, pid, err)
	}
	return nil
}

func (c *Component) end(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.signalLocked(sig); err != nil {
		return err
	}
	const interval = 5 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for deadline := time.Now().Add(componentGrace); ; <-ticker.C {
		switch pid, err := c.pidLocked(); {
		case errors.Is(err, ErrNotRunning):
			if c.started != nil {
				<-c.started.exited
			}
			return nil
		case err != nil:
			return err
		case time.Now().After(deadline):
			deadline = time.Now().Add(componentGrace)
			_ = syscall.Kill(pid, syscall.SIGKILL) // The process may already have exited.
		}
	}
}

// release stops the process that Start has started, if any. Further calls to Start fail.
func (c *Component) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.released = true
	if c.started != nil {
		c.started.stop(componentGrace)
	}
}

// pidLocked returns the process ID in the component's PID file. The component locks the file while it is running.
func (c *Component) pidLocked() (int, error) {
	if c.dir == "" {
		return 0, ErrExternal
	}
	f, err := os.Open(filepath.Join(c.dir, c.name+".pid"))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.name, err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		return 0, errors.Join(fmt.Errorf("%s: %w", c.name, ErrNotRunning), err)
	}
	data, err := os.ReadFile(f.Name())
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.name, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("%s: parse PID file: %w", c.name, err)
	}
	return pid, nil
}
