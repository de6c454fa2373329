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

// process is an example, running.
type process struct {
	cmd   *exec.Cmd
	echo  func(line string)
	ended chan struct{} // closed once it has

	mu      sync.Mutex // guards what follows
	rest    []byte     // of a line that is not whole
	lines   []string
	waited  int // how many of the lines were waited for, or skipped
	changed chan struct{}
}

// run starts an example on the stage's cluster.
func (s *stage) run(example, name string) error {
	p := &process{
		cmd:     exec.Command(filepath.Join(s.binaries, example)),
		echo:    func(line string) { s.say("%s | %s", name, line) },
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
		_ = p.cmd.Wait() // ProcessState says how
	}()
	s.processes[name] = p
	return nil
}

// Write takes what the process prints.
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

// waitSaid waits for a line with what is looked for, and skips those before it.
func (p *process) waitSaid(ctx context.Context, what string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("gave up after %s", patience))
	defer cancel()
	for {
		// Looked at before the lines: what an ended process has said is all there.
		over := p.hasEnded()
		found, changed := p.skipTo(what)
		switch {
		case found:
			return nil
		case over:
			return fmt.Errorf("it has ended: %s", p.cmd.ProcessState)
		}
		select {
		case <-changed:
		case <-p.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (p *process) skipTo(what string) (found bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.waited < len(p.lines) && !found {
		found = strings.Contains(p.lines[p.waited], what)
		p.waited++
	}
	return found, p.changed
}

func (p *process) hasSaid(what string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.lines, func(line string) bool { return strings.Contains(line, what) })
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// stop ends the process with SIGTERM, if it has not ended, and returns when it is gone.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may be gone
	select {
	case <-p.ended:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}
