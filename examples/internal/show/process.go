package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a running example.
type process struct {
	cmd   *exec.Cmd
	echo  func(line string)
	ended chan struct{} // closed when the process has exited

	mu      sync.Mutex // guards the fields below
	rest    []byte     // an incomplete line
	lines   []string
	waited  int // number of lines that waitForLine has examined
	changed chan struct{}
}

// run starts an example on the cluster of the environment.
func (s *environment) run(example, name string) error {
	p := &process{
		cmd:     exec.Command(filepath.Join(s.binaries, example)),
		echo:    func(line string) { s.printf("%s | %s", name, line) },
		ended:   make(chan struct{}),
		changed: make(chan struct{}),
	}
	p.cmd.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig, "POD_NAME="+name)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the result is in ProcessState
	}()
	s.processes[name] = p
	return nil
}

// Write receives the output of the process.
func (p *process) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest = append(p.rest, data...)
	for {
		line, rest, whole := bytes.Cut(p.rest, []byte("\n"))
		if !whole {
			break
		}
		p.echo(string(line))
		p.lines, p.rest = append(p.lines, string(line)), rest
	}
	close(p.changed)
	p.changed = make(chan struct{})
	return len(data), nil
}

// waitForLine waits for a line with the text, and skips the lines before it.
func (p *process) waitForLine(ctx context.Context, text string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("gave up after %s", stepTimeout))
	defer cancel()
	for {
		// Check this first: once a process has exited, its lines are complete.
		ended := p.hasEnded()
		found, changed := p.skipTo(text)
		switch {
		case found:
			return nil
		case ended:
			return fmt.Errorf("the process has ended: %s", p.cmd.ProcessState)
		}
		select {
		case <-changed:
		case <-p.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (p *process) skipTo(text string) (found bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.waited < len(p.lines) && !found {
		found = strings.Contains(p.lines[p.waited], text)
		p.waited++
	}
	return found, p.changed
}

func (p *process) hasPrinted(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.lines, func(line string) bool { return strings.Contains(line, text) })
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// stop stops the process with SIGTERM and waits until it has exited.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may already have exited
	select {
	case <-p.ended:
	case <-time.After(stepTimeout):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}
