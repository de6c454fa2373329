package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// parentEnv names the environment variable that contains the ID of the parent process. The binary exits when that
// process exits.
const parentEnv = "CONTROLPLANE_PARENT"

// Time for a graceful shutdown before a process is killed. The "up" command stops two servers.
const (
	upGrace        = 10 * time.Second
	componentGrace = 5 * time.Second
)

// process is a running instance of the binary.
type process struct {
	cmd    *exec.Cmd
	ready  chan struct{} // Closed when the process reports that it is ready.
	exited chan struct{} // Closed after the process has been reaped.
}

// collectSeldom makes kube-apiserver and etcd collect garbage less often, at the cost of memory. A run of tests takes
// about a fifth less CPU time. The environment overrides it.
var collectSeldom = []string{"GOGC=400", "GOMEMLIMIT=2GiB"}

// startProcess starts the binary and returns without waiting until the process is ready. The process is ready when
// isReady returns true for a line of its standard output.
func startProcess(stderr io.Writer, isReady func(line string) bool, args ...string) (*process, error) {
	path, err := binary()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(path, args...), ready: make(chan struct{}), exited: make(chan struct{})}
	p.cmd.Env = append(slices.Concat(collectSeldom, os.Environ()), parentEnv+"="+strconv.Itoa(os.Getpid()))
	p.cmd.Stderr = stderr
	// Ctrl-C signals a whole process group. The binary is in a separate group, so Ctrl-C does not reach it. It exits when
	// its parent exits.
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
	defer close(p.exited)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if isReady(lines.Text()) {
			close(p.ready)
			break
		}
	}
	_, _ = io.Copy(io.Discard, out) // Drain the pipe until the process exits.
	_ = p.cmd.Wait()
}

// waitReady waits until the process is ready. If the process exits or ctx is cancelled first, waitReady returns an
// error that includes the process's output. When waitReady returns an error, the process has exited.
func (p *process) waitReady(ctx context.Context, grace time.Duration, output func() string) error {
	var err error
	select {
	case <-p.ready:
		return nil
	case <-p.exited:
		err = fmt.Errorf("%s exited: %s", p.cmd, p.cmd.ProcessState)
	case <-ctx.Done():
		p.stop(grace)
		err = fmt.Errorf("%s did not become ready: %w", p.cmd, context.Cause(ctx))
	}
	if text := output(); text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// stop terminates the process and waits until it has exited. It reports whether the process exited within grace. If
// not, stop has killed the process.
func (p *process) stop(grace time.Duration) bool {
	// A paused process does not handle SIGTERM before it receives SIGCONT. An error means that the process has already
	// exited.
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-p.exited:
		return true
	case <-time.After(grace):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // With the program that a launcher has started.
		<-p.exited
		return false
	}
}

func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// tail is a writer that stores the last bytes written to it.
type tail []byte

const tailSize = 4 << 10

func (t *tail) Write(data []byte) (int, error) {
	*t = append(*t, data...)
	*t = (*t)[max(0, len(*t)-tailSize):]
	return len(data), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(*t)) }
