package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// child is a component that runs as a child of this process. Its log file is in dir.
type child struct {
	component string
	dir       dir
	cmd       *exec.Cmd
	ready     chan struct{} // Closed when the component reports that it is ready.
	exited    chan struct{} // Closed after the process has been reaped.
}

// startChild runs this binary as one of the components. It does not wait until the component is ready.
func startChild(d dir, component string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(d.logFile(component), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // The child has its own file descriptor.
	cmd := exec.Command(self, component, "--dir", string(d))
	cmd.Env = append(os.Environ(), parentEnv+"="+strconv.Itoa(os.Getpid()))
	cmd.Stderr = log
	// Ctrl-C signals a whole process group. The child is in a separate group, because this process stops its children
	// itself, the API server first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", component, err)
	}
	c := &child{component: component, dir: d, cmd: cmd, ready: make(chan struct{}), exited: make(chan struct{})}
	go c.follow(out)
	return c, nil
}

func (c *child) follow(out io.Reader) {
	defer close(c.exited)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.HasSuffix(lines.Text(), readySuffix) {
			close(c.ready)
			break
		}
	}
	_, _ = io.Copy(io.Discard, out) // Drain the pipe until the process exits.
	_ = c.cmd.Wait()                // ProcessState holds the result.
}

// waitReady waits until the component is ready. If the component exits or ctx is cancelled first, it returns an error
// with the last lines of the component's log.
func (c *child) waitReady(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-c.exited:
		return fmt.Errorf("%s exited before it was ready (%s); the last lines of %s:\n%s",
			c.component, c.cmd.ProcessState, c.dir.logFile(c.component), c.dir.logTail(c.component))
	case <-ctx.Done():
		return fmt.Errorf("%s is not ready: %w; the last lines of %s:\n%s",
			c.component, context.Cause(ctx), c.dir.logFile(c.component), c.dir.logTail(c.component))
	}
}

// stop terminates the component and waits until it has exited. If the component is still running after grace, stop
// kills it.
func (c *child) stop(grace time.Duration) {
	if c == nil {
		return
	}
	// A paused process does not handle SIGTERM before it receives SIGCONT. An error means that the process has already
	// exited.
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	_ = c.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-c.exited:
	case <-time.After(grace):
		_ = c.signalGroup(syscall.SIGKILL)
		<-c.exited
	}
}

// signalGroup sends a signal to the component. If the component is a program from KUBEBUILDER_ASSETS, the group
// contains the program and the process that started it.
func (c *child) signalGroup(sig syscall.Signal) error { return syscall.Kill(-c.cmd.Process.Pid, sig) }
