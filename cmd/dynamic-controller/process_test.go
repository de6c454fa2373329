package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for what takes milliseconds when it works.
const patience = 20 * time.Second

// process is the binary under test, running.
type process struct {
	*testing.T
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of its end

	mu  sync.Mutex // guards log
	log bytes.Buffer
}

// start runs the binary until the test ends.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{T: t, cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	p.cmd.Stderr = p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("log of process %d:\n%s", p.cmd.Process.Pid, p.output())
		}
	})
	return p
}

// startServing starts the binary on the cluster and returns once it serves.
func startServing(t *testing.T, kubeconfig string) *process {
	t.Helper()
	p := start(t, "run", "--kubeconfig", kubeconfig, "-v", "1")
	p.waitLog(line{Msg: "reconciling"})
	return p
}

// Write takes what the process logs.
func (p *process) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(data)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// line is what tests read of a line of the log.
type line struct{ Level, Msg, GVR, CRD, Object, Problem, Message, Resource, Verb string }

// logged returns the lines that have all that is set in want; its words need only occur in the line's.
func (p *process) logged(want line) []line {
	var found []line
	for text := range strings.Lines(p.output()) {
		var got line
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			continue // a line that is not whole yet
		}
		if got.has(want) {
			found = append(found, got)
		}
	}
	return found
}

func (l line) has(want line) bool {
	return strings.Contains(l.Level, want.Level) && strings.Contains(l.Msg, want.Msg) && strings.Contains(l.GVR, want.GVR) &&
		strings.Contains(l.CRD, want.CRD) && strings.Contains(l.Object, want.Object) &&
		strings.Contains(l.Problem, want.Problem) && strings.Contains(l.Message, want.Message) &&
		strings.Contains(l.Resource, want.Resource) && strings.Contains(l.Verb, want.Verb)
}

func (p *process) waitLog(want line) {
	p.Helper()
	eventually(p.T, func() error {
		select {
		case <-p.ended:
			p.Fatalf("the process has ended (%v)", p.err)
		default:
		}
		if len(p.logged(want)) == 0 {
			return fmt.Errorf("the log has no line with %+v", want)
		}
		return nil
	})
}

// loggedOnce fails the test if the log has not exactly one such line.
func (p *process) loggedOnce(want line) {
	p.Helper()
	if got := p.logged(want); len(got) != 1 {
		p.Errorf("%d lines with %+v, want one: %+v", len(got), want, got)
	}
}

// end sends the signal and returns how long the process took to end with exit code 0.
func (p *process) end(sig syscall.Signal) time.Duration {
	p.Helper()
	began := time.Now()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.Fatal(err)
	}
	if code := p.wait(); code != 0 {
		p.Errorf("exit code %d after %s, want 0", code, sig)
	}
	return time.Since(began)
}

// wait returns the exit code.
func (p *process) wait() int {
	p.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		_ = p.cmd.Process.Signal(os.Kill)
		p.Fatalf("the process has not ended within %s", patience)
		return 0
	}
}

// eventually waits until check finds nothing wrong.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	const pause = 10 * time.Millisecond
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); ; <-ticker.C {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %v", patience, err)
		}
	}
}
