package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Errors of a Part.
var (
	// ErrForeign is returned when a test would break a cluster that it did not start.
	ErrForeign = errors.New("this cluster was not started here (" + kubeconfigEnv + "), so its parts cannot be broken")
	// ErrNotRunning is returned when there is no process to signal.
	ErrNotRunning = errors.New("it does not run")
	// ErrRunning is returned by Start when there is nothing to start.
	ErrRunning = errors.New("it already runs")
)

// Part is one of the two servers of a cluster, to be broken and mended. Its methods may be called concurrently, and take
// their turns.
type Part struct {
	name string // of the binary's command and of the part's files
	dir  string // empty if the cluster is foreign

	mu       sync.Mutex // held while a method runs
	started  *process   // by Start, last
	released bool       // the cluster has ended
}

// PID returns the part's process, or ErrNotRunning.
func (p *Part) PID() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pidLocked()
}

// Kill ends the part with SIGKILL, and returns when it is gone.
func (p *Part) Kill() error {
	return p.end(syscall.SIGKILL)
}

// Stop ends the part with SIGTERM, and with SIGKILL if that takes longer than 5 s. It returns when it is gone.
func (p *Part) Stop() error {
	return p.end(syscall.SIGTERM)
}

// Pause stops the part with SIGSTOP: its connections stay open, and nothing answers.
func (p *Part) Pause() error {
	return p.signal(syscall.SIGSTOP)
}

// Resume continues a part that was paused.
func (p *Part) Resume() error {
	return p.signal(syscall.SIGCONT)
}

// Start starts the part again, as a child of this process that ends with it, on the port and the data that it had. It
// returns when the part answers requests itself: an API server when it says that it is ready, etcd even if the API
// server has not found it yet (Cluster.WaitReady waits for both).
func (p *Part) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.released {
		return fmt.Errorf("starting %s: the cluster was stopped", p.name)
	}
	switch _, err := p.pidLocked(); {
	case err == nil:
		return fmt.Errorf("starting %s: %w", p.name, ErrRunning)
	case !errors.Is(err, ErrNotRunning):
		return err
	}
	log, err := os.OpenFile(filepath.Join(p.dir, p.name+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	defer log.Close() // the child has its own
	started, err := startProcess(log, func(line string) bool { return strings.HasSuffix(line, " is ready") },
		p.name, "--dir", p.dir)
	if err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	p.started = started
	return started.waitReady(ctx, 0, func() string { // a part that is not ready has nothing to end gently
		var end tail
		data, err := os.ReadFile(log.Name())
		_, _ = end.Write(data) // cannot fail
		if err != nil {
			return err.Error()
		}
		return end.String()
	})
}

func (p *Part) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.signalLocked(sig)
}

func (p *Part) signalLocked(sig syscall.Signal) error {
	pid, err := p.pidLocked()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, sig); err != nil {
		return fmt.Errorf("%s to %s (process %d): %w", sig, p.name, pid, err)
	}
	return nil
}

func (p *Part) end(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.signalLocked(sig); err != nil {
		return err
	}
	const pause = 5 * time.Millisecond
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for deadline := time.Now().Add(partGrace); ; <-ticker.C {
		switch pid, err := p.pidLocked(); {
		case errors.Is(err, ErrNotRunning):
			if p.started != nil {
				<-p.started.ended
			}
			return nil
		case err != nil:
			return err
		case time.Now().After(deadline):
			deadline = time.Now().Add(partGrace)
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone by now
		}
	}
}

// release ends what Start has started, and lets it start no more.
func (p *Part) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = true
	if p.started != nil {
		p.started.stop(partGrace)
	}
}

// pidLocked asks the file that the part keeps locked as long as it lives.
func (p *Part) pidLocked() (int, error) {
	if p.dir == "" {
		return 0, ErrForeign
	}
	f, err := os.Open(filepath.Join(p.dir, p.name+".pid"))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", p.name, err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		return 0, errors.Join(fmt.Errorf("%s: %w", p.name, ErrNotRunning), err)
	}
	data, err := os.ReadFile(f.Name())
	if err != nil {
		return 0, fmt.Errorf("%s: %w", p.name, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("%s has not written its pid yet: %w", p.name, err)
	}
	return pid, nil
}
