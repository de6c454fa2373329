package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// rivalEnv names an environment variable that contains a rival in JSON. If the variable is set, the test binary
// competes for a Lease instead of running tests.
const rivalEnv = "INTEGRATION_RIVAL"

// rival describes a process that competes for a Lease.
type rival struct {
	Name, Namespace string
	ClientGo        bool // with client-go's elector instead of package replica
	Host, Token     string
	TLS             rest.TLSClientConfig
}

// compete runs a rival. It prints a line when it begins and when it ceases to lead, and ends when its input is closed.
func compete(spec string) int {
	var r rival
	if err := json.Unmarshal([]byte(spec), &r); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	cfg := &rest.Config{Host: r.Host, BearerToken: r.Token, TLSClientConfig: r.TLS}
	lead := func(ctx context.Context) {
		_, _ = fmt.Println("leads", time.Now().UnixNano())
		<-ctx.Done()
		_, _ = fmt.Println("stops", time.Now().UnixNano())
	}
	// client-go does not notice a renewal in the same second as the previous one.
	const duration, deadline, retryPeriod = 4 * time.Second, 2 * time.Second, time.Second
	if !r.ClientGo {
		a := must(replica.New(logr.Discard(), cfg, replica.Options{
			LeaseName: leaseName, LeaseNamespace: r.Namespace, Identity: r.Name,
			LeaseDuration: duration, RenewDeadline: deadline, RetryPeriod: retryPeriod,
		}))
		err := a.Register("lead", replica.RunFunc(func(ctx context.Context) error {
			lead(ctx)
			return nil
		}), replica.ScopeLeader)
		if err == nil {
			err = a.Run(ctx)
		}
		if err != nil {
			panic(err)
		}
		return 0
	}
	var leading sync.WaitGroup
	elector := must(leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: leaseName, Namespace: r.Namespace},
			Client:     must(kubernetes.NewForConfig(cfg)).CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: r.Name},
		},
		LeaseDuration: duration, RenewDeadline: deadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { leading.Go(func() { lead(ctx) }) },
			OnStoppedLeading: func() {},
		},
	}))
	elector.Run(ctx)
	leading.Wait()
	return 0
}

// rivalProcess is a running rival.
type rivalProcess struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{}

	mu    sync.Mutex // guards the fields below
	leads time.Time
	stops time.Time
}

func (h *harness) startRival(r rival) *rivalProcess {
	h.Helper()
	r.Namespace, r.Host, r.Token, r.TLS = h.namespace, h.config.Host, h.config.BearerToken, h.config.TLSClientConfig
	p := &rivalProcess{cmd: exec.Command(must(os.Executable())), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), rivalEnv+"="+string(must(json.Marshal(r))))
	p.cmd.Stderr = os.Stderr
	out, in := must(p.cmd.StdoutPipe()), must(p.cmd.StdinPipe())
	p.stdin = in
	h.noError(p.cmd.Start())
	go func() {
		defer close(p.exited)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.record(lines.Text())
		}
		_ = p.cmd.Wait()
	}()
	h.Cleanup(p.kill)
	return p
}

func (p *rivalProcess) record(line string) {
	var what string
	var at int64
	if _, err := fmt.Sscan(line, &what, &at); err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch what {
	case "leads":
		p.leads = time.Unix(0, at)
	case "stops":
		p.stops = time.Unix(0, at)
	}
}

func (p *rivalProcess) times() (leads, stops time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.leads, p.stops
}

// leave ends the process in order.
func (p *rivalProcess) leave() {
	_ = p.stdin.Close()
	<-p.exited
}

func (p *rivalProcess) kill() {
	_ = p.cmd.Process.Kill() // fails if the process has exited
	<-p.exited
}

// TestL1_ClientGoElectorCompetesForTheSameLease changes leaders between processes with package replica and processes
// with client-go's elector, in both directions, after a release and after SIGKILL.
func TestL1_ClientGoElectorCompetesForTheSameLease(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	leader := h.startRival(rival{Name: "replica-0"})
	isClientGo := false
	h.eventually("the first process leads", leader.isLeading)
	for i, end := range slices.Repeat([]string{"leaves", "leaves", "is killed", "is killed"}, 2) {
		isClientGo = !isClientGo
		next := h.startRival(rival{Name: fmt.Sprintf("rival-%d", i), ClientGo: isClientGo})
		ended := time.Now()
		if end == "leaves" {
			leader.leave()
			if _, stops := leader.times(); stops.IsZero() {
				t.Error("the process has left without a message")
			} else if isClientGo { // client-go's elector releases the Lease without waiting for the end of the work
				ended = stops
			}
		} else {
			leader.kill()
		}
		h.eventually("the next process leads", next.isLeading)
		leads, _ := next.times()
		took := leads.Sub(ended)
		t.Logf("the leader %s, client-go follows: %t, after %s", end, isClientGo, took.Round(time.Millisecond))
		if took < 0 {
			t.Errorf("both lead for %s", -took)
		}
		if end == "is killed" && took < 3*time.Second {
			t.Errorf("the lease of a killed leader was acquired after %s", took)
		}
		leader = next
	}
	leader.leave()
	if s := h.lease().Spec; *s.HolderIdentity != "" || *s.LeaseDurationSeconds != 1 {
		t.Errorf("the Lease is not released: %+v", s)
	}
	if n := *h.lease().Spec.LeaseTransitions; n != 8 {
		t.Errorf("%d transitions, want 8", n)
	}
}

func (p *rivalProcess) isLeading() error {
	if leads, stops := p.times(); leads.IsZero() || !stops.IsZero() {
		return fmt.Errorf("led from %s to %s", leads, stops)
	}
	return nil
}
