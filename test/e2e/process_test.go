package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// process is a replica that runs.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it was reaped and err is set
	err   error
}

// startProcess starts this test binary again, with its words in a file. It ends with this process at the latest.
func startProcess(t *testing.T, j job, words string) *process {
	t.Helper()
	spec, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile(words, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close() // the child has its own
	p := &process{cmd: exec.Command(binary), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(spec),
		// How soon HTTP/2 notices a connection on which nothing comes back; 30 and 15 by default.
		"HTTP2_READ_IDLE_TIMEOUT_SECONDS=1", "HTTP2_PING_TIMEOUT_SECONDS=1")
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = ofThisProcess()
	// The other end of this pipe closes with this process, however it ends.
	if _, err := p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // this thread lives as long as the child: see ofThisProcess
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	return p
}

// kill ends the process, even one that is stopped, and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be gone already
	<-p.ended
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Errorf("%s to %d: %v", s, p.cmd.Process.Pid, err)
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
