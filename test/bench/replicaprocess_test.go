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

// replicaProcess is a replica in a process of its own.
type replicaProcess struct {
	cmd  *exec.Cmd
	over chan struct{} // closed when it has ended and all it said was heard
	errs strings.Builder

	mu      sync.Mutex // guards what follows
	said    map[string][]time.Time
	changed chan struct{} // closed and renewed whenever it says something
}

const electionEnv = "BENCH_ELECTION"

func startReplica(ctx context.Context, j job, e election) (*replicaProcess, error) {
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
	p := &replicaProcess{cmd: exec.CommandContext(ctx, binary), over: make(chan struct{}), said: map[string][]time.Time{}, changed: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), jobEnv+"="+string(spec), electionEnv+"="+string(electing))
	p.cmd.Stderr = &p.errs
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if _, err := p.cmd.StdinPipe(); err != nil { // its end is the child's, too
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.listen(out)
	return p, nil
}

// listen takes the time of what is said as it is heard.
func (p *replicaProcess) listen(out io.Reader) {
	defer close(p.over)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		now := time.Now()
		p.mu.Lock()
		p.said[lines.Text()] = append(p.said[lines.Text()], now)
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}
	_ = p.cmd.Wait() // it may have been killed
}

// wait returns when the replica said something first.
func (p *replicaProcess) wait(ctx context.Context, word string) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errTooLong)
	defer cancel()
	for {
		p.mu.Lock()
		said, changed := p.said[word], p.changed
		p.mu.Unlock()
		if len(said) > 0 {
			return said[0], nil
		}
		select {
		case <-changed:
		case <-p.over:
			return time.Time{}, fmt.Errorf("the replica ended before it said %q: %s", word, lastLines(p.errs.String()))
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("the replica did not say %q: %w", word, context.Cause(ctx))
		}
	}
}

func (p *replicaProcess) last(word string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if said := p.said[word]; len(said) > 0 {
		return said[len(said)-1]
	}
	return time.Time{}
}

func (p *replicaProcess) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.over
}
