package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// replicaProcess is a replica that runs in a separate process.
type replicaProcess struct {
	cmd    *exec.Cmd
	exited chan struct{} // Closed after the process has exited and its output has been read.
	errs   strings.Builder
	in     io.Writer         // The input of the process.
	other  func(line string) // Called with each line that is no event.

	mu      sync.Mutex // Guards the fields below.
	events  map[string][]time.Time
	changed chan struct{} // Closed and replaced whenever an event occurs.
}

const electionEnv = "BENCH_ELECTION"

// startReplica starts a replica. Lines that begin with a brace are passed to other. All other lines are events.
func startReplica(ctx context.Context, j job, e election, other func(line string)) (*replicaProcess, error) {
	spec, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	electing, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &replicaProcess{
		cmd: exec.CommandContext(ctx, binary), exited: make(chan struct{}),
		events: map[string][]time.Time{}, changed: make(chan struct{}),
		other: other,
	}
	p.cmd.Env = append(os.Environ(), jobEnv+"="+string(spec), electionEnv+"="+string(electing))
	p.cmd.Stderr = &p.errs
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil { // The child exits when this pipe is closed.
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.listen(out)
	return p, nil
}

// listen records the times of the events that the replica prints.
func (p *replicaProcess) listen(out io.Reader) {
	defer close(p.exited)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		now := time.Now()
		if strings.HasPrefix(lines.Text(), "{") {
			p.other(lines.Text())
			continue
		}
		p.mu.Lock()
		p.events[lines.Text()] = append(p.events[lines.Text()], now)
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}
	_ = p.cmd.Wait() // The process may have been killed.
}

// wait waits for an event and returns the time of its first occurrence.
func (p *replicaProcess) wait(ctx context.Context, event string) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errTimeout)
	defer cancel()
	for {
		p.mu.Lock()
		times, changed := p.events[event], p.changed
		p.mu.Unlock()
		if len(times) > 0 {
			return times[0], nil
		}
		select {
		case <-changed:
		case <-p.exited:
			return time.Time{}, fmt.Errorf("the replica exited before event %q: %s", event, lastLines(p.errs.String()))
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for event %q of the replica: %w", event, context.Cause(ctx))
		}
	}
}

// last returns the time of the last occurrence of an event.
func (p *replicaProcess) last(event string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if times := p.events[event]; len(times) > 0 {
		return times[len(times)-1]
	}
	return time.Time{}
}

func (p *replicaProcess) kill() {
	_ = p.cmd.Process.Kill() // The process may already have exited.
	<-p.exited
}
