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

// child is a part that runs as a child process of this one, its log in the directory.
type child struct {
	part  string
	dir   dir
	cmd   *exec.Cmd
	ready chan struct{} // closed when it has said so
	ended chan struct{} // closed when it was reaped and err is set
	err   error         // how it ended
}

// startChild starts this same binary again. It does not wait.
func startChild(d dir, part string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(d.logFile(part), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(self, part, "--dir", string(d))
	cmd.Env = append(os.Environ(), parentEnv+"="+strconv.Itoa(os.Getpid()))
	cmd.Stderr = log
	// A Ctrl-C goes to a whole process group; this process ends the children itself, the API server first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", part, err)
	}
	c := &child{part: part, dir: d, cmd: cmd, ready: make(chan struct{}), ended: make(chan struct{})}
	go c.follow(out)
	return c, nil
}

func (c *child) follow(out io.Reader) {
	defer close(c.ended)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.HasSuffix(lines.Text(), readySuffix) {
			close(c.ready)
			break
		}
	}
	_, _ = io.Copy(io.Discard, out) // until it ends; how it ended is what Wait says
	c.err = c.cmd.Wait()
}

// waitReady returns nil once the part is ready, and an error with the end of its log if it ended or ctx did.
func (c *child) waitReady(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-c.ended:
		return fmt.Errorf("%s ended while starting (%s); the end of %s:\n%s",
			c.part, c.cmd.ProcessState, c.dir.logFile(c.part), c.dir.logTail(c.part))
	case <-ctx.Done():
		return fmt.Errorf("%s is not ready: %w; the end of %s:\n%s",
			c.part, context.Cause(ctx), c.dir.logFile(c.part), c.dir.logTail(c.part))
	}
}

// stop ends the part, gently if that takes no longer than grace, and returns when it is gone.
func (c *child) stop(grace time.Duration) {
	if c == nil {
		return
	}
	// A paused process acts on no signal but SIGKILL and this. Errors say that it is gone already.
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	_ = c.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-c.ended:
	case <-time.After(grace):
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
}
