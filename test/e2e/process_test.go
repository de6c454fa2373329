package e2e

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// process is the process of a replica.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // Closed after the process has been reaped and err has been set.
	err    error
}

// startProcess starts the command of a replica and writes the replica's output to a file. When this process exits, the
// replica exits too.
func startProcess(t *testing.T, cmd *exec.Cmd, output string) *process {
	t.Helper()
	out, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close() // The child has its own file descriptor.
	p := &process{cmd: cmd, exited: make(chan struct{})}
	// Detect hung HTTP/2 connections quickly. The defaults are 30 and 15 seconds.
	p.cmd.Env = append(p.cmd.Env, "HTTP2_READ_IDLE_TIMEOUT_SECONDS=1", "HTTP2_PING_TIMEOUT_SECONDS=1")
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = childAttributes()
	// The write end of this pipe is closed when this process exits for any reason.
	if _, err := p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // The child is killed when this thread exits: see childAttributes.
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	return p
}

// kill kills the process, even if it is stopped, and waits until it has exited.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // The process may already have exited.
	<-p.exited
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Errorf("send %s to process %d: %v", s, p.cmd.Process.Pid, err)
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
