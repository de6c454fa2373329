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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"

	"github.com/dynamic-controller/engine/internal/testkit"
	"github.com/dynamic-controller/engine/test/cluster"
)

// waitTimeout is the maximum time to wait for an expected state.
const waitTimeout = 2 * time.Minute

// process is a running platform process.
type process struct {
	*testing.T
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // returned by Wait

	mu  sync.Mutex // guards log
	log bytes.Buffer
}

// start runs the program. The process ends with the test.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startCommand(t, exec.Command(binary, args...))
}

// startCommand runs a command. The process ends with the test.
func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p, err := begin(t, cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
		if t.Failed() {
			t.Logf("log of process %d:\n%s", p.cmd.Process.Pid, p.output())
		}
	})
	return p
}

// begin starts a command. The caller must end it.
func begin(t *testing.T, cmd *exec.Cmd) (*process, error) {
	p := &process{T: t, cmd: cmd, exited: make(chan struct{})}
	p.cmd.Stderr = p
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// startServing starts a replica and waits until it is the leader.
func startServing(t *testing.T, kubeconfig string, args ...string) *process {
	t.Helper()
	p := startReplica(t, kubeconfig, args...)
	p.waitLog(line{Msg: "Started leading"})
	return p
}

// startReplica starts a replica. Each test has its own Lease.
func startReplica(t *testing.T, kubeconfig string, args ...string) *process {
	t.Helper()
	return start(t, replicaArgs(t, kubeconfig, args...)...)
}

// replicaArgs returns the command line of a replica.
func replicaArgs(t *testing.T, kubeconfig string, args ...string) []string {
	return runArgs(kubeconfig, append([]string{"-v", "1", "--health-probe-bind-address", "127.0.0.1:0",
		"--leader-elect-lease-duration", leaseDuration.String(), "--leader-elect-renew-deadline", "20s",
		"--leader-elect-retry-period", "500ms",
		"--leader-elect-resource-name", leaseOf(t), "--leader-elect-resource-namespace", metav1.NamespaceDefault,
		"--namespace", platformNamespace}, args...)...)
}

// runArgs returns the command line of a platform that serves Blueprints with the platform's own permissions.
func runArgs(kubeconfig string, args ...string) []string {
	return append([]string{"run", "--kubeconfig", kubeconfig, "--allow-platform-identity"}, args...)
}

// platformNamespace is the namespace of the platform in tests. Instances cannot have children there.
const platformNamespace = "platform-system"

// leaseDuration is long, so that replicas keep the Lease on a busy machine.
const leaseDuration = 30 * time.Second

// shortLease contains arguments for tests in which a Lease expires.
var shortLease = []string{"--leader-elect-lease-duration", "3s", "--leader-elect-renew-deadline", "2s"}

// leases contains the names of Leases by *testing.T.
var leases sync.Map

// leaseOf returns the name of the test's Lease. Repeated runs of a test use different Leases.
func leaseOf(t *testing.T) string {
	name := strings.ToLower(strings.NewReplacer("/", ".", "_", "-", ",", "").Replace(t.Name()))
	lease, _ := leases.LoadOrStore(t, name+"-"+utilrand.String(6))
	return lease.(string)
}

// Write appends to the log.
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

// line contains the fields of a log line that tests use.
type line struct {
	Level, Msg, GVR, CRD, Object, Problem, Message, Resource, Verb, Leader, Cause, Endpoint, Address, Type string
	ReconcileID, TraceID, Objects                                                                          string
	Term, Generation                                                                                       int64
}

// logged returns the matching lines. A line matches if each of its fields contains the text of that field in want.
func (p *process) logged(want line) []line {
	var found []line
	for text := range strings.Lines(p.output()) {
		var got line
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			continue // incomplete line
		}
		if got.has(want) {
			found = append(found, got)
		}
	}
	return found
}

func (l line) has(want line) bool {
	return strings.Contains(l.Level, want.Level) && strings.Contains(l.Msg, want.Msg) &&
		strings.Contains(l.GVR, want.GVR) &&
		strings.Contains(l.CRD, want.CRD) && strings.Contains(l.Object, want.Object) &&
		strings.Contains(l.Problem, want.Problem) && strings.Contains(l.Message, want.Message) &&
		strings.Contains(l.Resource, want.Resource) && strings.Contains(l.Verb, want.Verb) &&
		strings.Contains(l.Leader, want.Leader) && strings.Contains(l.Cause, want.Cause) &&
		strings.Contains(l.Endpoint, want.Endpoint) && strings.Contains(l.Type, want.Type) &&
		strings.Contains(l.ReconcileID, want.ReconcileID) && strings.Contains(l.TraceID, want.TraceID) &&
		(want.Term == 0 || l.Term == want.Term) && (want.Generation == 0 || l.Generation == want.Generation)
}

func (p *process) waitLog(want line) {
	p.Helper()
	eventually(p.T, func() error {
		select {
		case <-p.exited:
			p.Fatalf("the process has exited: %v", p.err)
		default:
		}
		if len(p.logged(want)) == 0 {
			return fmt.Errorf("no log line matches %+v", want)
		}
		return nil
	})
}

// loggedOnce fails the test unless exactly one line matches want.
func (p *process) loggedOnce(want line) {
	p.Helper()
	if got := p.logged(want); len(got) != 1 {
		p.Errorf("got %d log lines that match %+v, want one: %+v", len(got), want, got)
	}
}

// stop sends a signal, waits until the process exits with code 0, and returns the duration.
func (p *process) stop(sig syscall.Signal) time.Duration {
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

// crash kills the process without releasing its Lease.
func (p *process) crash() {
	p.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.Fatal(err)
	}
	<-p.exited
}

// kill kills the process and deletes its Lease, so that the next process becomes the leader immediately.
func (p *process) kill() {
	p.Helper()
	p.crash()
	c, ok := taken.Load(p.T)
	if !ok {
		p.Fatal("the test has no cluster")
	}
	kube, err := kubernetes.NewForConfig(c.(*cluster.Cluster).Config())
	if err == nil {
		err = kube.CoordinationV1().Leases(metav1.NamespaceDefault).Delete(p.Context(), leaseOf(p.T), metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		p.Fatal(err)
	}
}

// request returns an endpoint's response.
func (p *process) request(endpoint, path string) (code int, body string) {
	p.Helper()
	p.waitLog(line{Msg: "Listening", Endpoint: endpoint})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: waitTimeout}
	response, err := client.Get("http://" + p.logged(line{Msg: "Listening", Endpoint: endpoint})[0].Address + path)
	if err != nil {
		p.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		p.Fatal(err)
	}
	return response.StatusCode, string(data)
}

// waitReady waits until the replica is ready. A ready standby has warm caches.
func (p *process) waitReady() {
	p.Helper()
	eventually(p.T, func() error {
		if code, body := p.request(flagHealth, "/readyz"); code != http.StatusOK {
			return fmt.Errorf("/readyz returned %d, %s", code, body)
		}
		return nil
	})
}

// wait waits until the process exits, and returns its exit code.
func (p *process) wait() int {
	p.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(waitTimeout):
		_ = p.cmd.Process.Signal(os.Kill)
		p.Fatalf("the process has not exited within %s", waitTimeout)
		return 0
	}
}

// eventually waits until check returns nil.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	testkit.Eventually(t, waitTimeout, check)
}
