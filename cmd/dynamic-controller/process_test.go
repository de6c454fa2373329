package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// patience is how long a test waits for what takes milliseconds when it works.
const patience = time.Minute

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
	return startCommand(t, exec.Command(binary, args...))
}

// startCommand is start with a command of the caller's.
func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{T: t, cmd: cmd, ended: make(chan struct{})}
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

// startServing starts the binary on the cluster and returns once it leads.
func startServing(t *testing.T, kubeconfig string, args ...string) *process {
	t.Helper()
	p := startReplica(t, kubeconfig, args...)
	p.waitLog(line{Msg: "leading"})
	return p
}

// startReplica starts the binary as one of the test's replicas, whose lease is short and the test's own: a process that is
// killed does not give it back.
func startReplica(t *testing.T, kubeconfig string, args ...string) *process {
	t.Helper()
	return start(t, replicaArgs(t, kubeconfig, args...)...)
}

// replicaArgs is the command line of one of the test's replicas.
func replicaArgs(t *testing.T, kubeconfig string, args ...string) []string {
	return append([]string{"run", "--kubeconfig", kubeconfig, "-v", "1", "--health-probe-bind-address", "127.0.0.1:0",
		"--leader-elect-lease-duration", leaseDuration.String(), "--leader-elect-renew-deadline", "2s",
		"--leader-elect-retry-period", retryPeriod.String(),
		"--leader-elect-resource-name", leaseOf(t), "--leader-elect-resource-namespace", metav1.NamespaceDefault,
		"--namespace", platformNamespace}, args...)
}

// platformNamespace is the namespace of the platform under test. Instances cannot have children in it.
const platformNamespace = "platform-system"

const (
	leaseDuration = 3 * time.Second
	retryPeriod   = 500 * time.Millisecond
)

func leaseOf(t *testing.T) string {
	return strings.ToLower(strings.NewReplacer("/", ".", "_", "-", ",", "").Replace(t.Name()))
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
type line struct {
	Level, Msg, GVR, CRD, Object, Problem, Message, Resource, Verb, Leader, Cause, Endpoint, Address string
	Term                                                                                             int64
}

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
		strings.Contains(l.Resource, want.Resource) && strings.Contains(l.Verb, want.Verb) &&
		strings.Contains(l.Leader, want.Leader) && strings.Contains(l.Cause, want.Cause) &&
		strings.Contains(l.Endpoint, want.Endpoint) &&
		(want.Term == 0 || l.Term == want.Term)
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

// kill ends the process without warning.
func (p *process) kill() {
	p.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.Fatal(err)
	}
	<-p.ended
}

// ask returns the answer of one of the process's endpoints.
func (p *process) ask(endpoint, path string) (code int, body string) {
	p.Helper()
	p.waitLog(line{Msg: "listening", Endpoint: endpoint})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	answer, err := client.Get("http://" + p.logged(line{Msg: "listening", Endpoint: endpoint})[0].Address + path)
	if err != nil {
		p.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		p.Fatal(err)
	}
	return answer.StatusCode, string(data)
}

// waitReady returns once the process says that it is ready, which on a standby means that it is warm.
func (p *process) waitReady() {
	p.Helper()
	eventually(p.T, func() error {
		if code, body := p.ask(flagHealth, "/readyz"); code != http.StatusOK {
			return fmt.Errorf("it is not ready: %d, %s", code, body)
		}
		return nil
	})
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
