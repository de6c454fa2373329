package cluster

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

// parentEnv tells the binary whose end is also its own.
const parentEnv = "CONTROLPLANE_PARENT"

// How long a process has for its own way to end before it is killed. "up" has its two servers to end.
const (
	upGrace   = 10 * time.Second
	partGrace = 5 * time.Second
)

// process is the binary, run by this process.
type process struct {
	cmd   *exec.Cmd
	ready chan struct{} // closed when it has said so
	ended chan struct{} // closed when it was reaped
}

// startProcess does not wait. A line on the process' stdout for which isReady holds makes it ready.
func startProcess(stderr io.Writer, isReady func(line string) bool, args ...string) (*process, error) {
	path, err := binary()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(path, args...), ready: make(chan struct{}), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), parentEnv+"="+strconv.Itoa(os.Getpid()))
	p.cmd.Stderr = stderr
	// A Ctrl-C goes to a whole process group. It ends this process, and that ends the other.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("control plane binary: %w", err)
	}
	go p.follow(out, isReady)
	return p, nil
}

func (p *process) follow(out io.Reader, isReady func(string) bool) {
	defer close(p.ended)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if isReady(lines.Text()) {
			close(p.ready)
			break
		}
	}
	_, _ = io.Copy(io.Discard, out) // until it ends; how it ended is in ProcessState
	_ = p.cmd.Wait()
}

// waitReady returns when the process is ready. If it ended, or ctx did, that is an error and the process is gone; said
// then tells what it has written.
func (p *process) waitReady(ctx context.Context, grace time.Duration, said func() string) error {
	var err error
	select {
	case <-p.ready:
		return nil
	case <-p.ended:
		err = fmt.Errorf("%s ended: %s", p.cmd, p.cmd.ProcessState)
	case <-ctx.Done():
		p.stop(grace)
		err = fmt.Errorf("%s was not ready in time: %w", p.cmd, context.Cause(ctx))
	}
	if words := said(); words != "" {
		return fmt.Errorf("%w: %s", err, words)
	}
	return err
}

// stop ends the process and returns when it is gone: true if it ended within grace, false if it had to be killed.
func (p *process) stop(grace time.Duration) bool {
	// A paused process acts on no signal but SIGKILL and this. Errors say that it is gone already.
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-p.ended:
		return true
	case <-time.After(grace):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return false
	}
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// tail is a writer that keeps the end of what was written.
type tail []byte

const tailSize = 4 << 10

func (t *tail) Write(data []byte) (int, error) {
	*t = append(*t, data...)
	*t = (*t)[max(0, len(*t)-tailSize):]
	return len(data), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(*t)) }
