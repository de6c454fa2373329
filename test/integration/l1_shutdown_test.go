package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/internal/testkit"
)

var shutdowns = flag.Int("shutdowns", 40,
	"number of replicas with writes in flight that each test stops or lets step down")

const (
	busyWriters         = 8
	concurrentShutdowns = 4
	maxDelay            = 20 * time.Millisecond
)

// delayed delays each request by a random time, like a transport that traces or logs requests.
func delayed(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		time.Sleep(rand.N(maxDelay))
		return next.RoundTrip(r)
	})
}

// busyReplica is a replica whose leader-gated runnables write continuously.
type busyReplica struct {
	*replica.Replica
	h      *harness
	lease  string
	log    logLines
	wrote  sync.WaitGroup // done when each runnable has written
	result chan error     // the result of Run
	cancel context.CancelFunc
}

func (h *harness) busyReplica(lease string, slot int, policy replica.FailurePolicy) (*busyReplica, error) {
	b := &busyReplica{h: h, lease: lease, result: make(chan error, 1)}
	o := replicaOptions(h, lease)
	o.LeaseName, o.OnFailure = lease, policy
	o.LeaseDuration, o.RenewDeadline = 0, 0 // the defaults, because a busy machine can delay a release by seconds
	r, err := replica.New(b.log.logger(), h.config, o)
	if err != nil {
		return nil, err
	}
	config := r.FencedConfig()
	config.Wrap(delayed)
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	b.Replica = r
	b.wrote.Add(busyWriters)
	for i := range busyWriters {
		first, name := sync.OnceFunc(b.wrote.Done), fmt.Sprintf("written-%d-%d", slot, i)
		err := r.Register(name, replica.RunFunc(func(ctx context.Context) error {
			for n := 0; ; n++ {
				object := corev1apply.ConfigMap(name, h.namespace).WithData(map[string]string{"n": fmt.Sprint(n)})
				_, err := clients.CoreV1().ConfigMaps(h.namespace).Apply(ctx, object,
					metav1.ApplyOptions{FieldManager: "test", Force: true})
				if err != nil {
					return fmt.Errorf("write: %w", err) // counts as a clean exit if ctx is cancelled
				}
				first()
			}
		}), replica.ScopeLeader)
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (b *busyReplica) start() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.h.Context()))
	b.cancel = cancel
	go func() { b.result <- b.Run(ctx) }()
}

// shutdown stops Run and returns its error.
func (b *busyReplica) shutdown() error {
	b.cancel()
	select {
	case err := <-b.result:
		return err
	case <-time.After(deadline):
		return fmt.Errorf("Run has not returned within %s", deadline)
	}
}

func (b *busyReplica) getLease() (*coordinationv1.Lease, error) {
	return b.h.clients.CoordinationV1().Leases(b.h.namespace).Get(b.h.Context(), b.lease, metav1.GetOptions{})
}

// wasReleased returns nil if the lease was released, even if it has since been acquired again. The number of
// transitions increases only when a lease without a holder is acquired.
func (b *busyReplica) wasReleased() error {
	lease, err := b.getLease()
	if err != nil {
		return err
	}
	if s := lease.Spec; *s.HolderIdentity != "" && *s.LeaseTransitions == 0 {
		return fmt.Errorf("the lease was not released: %+v", s)
	}
	return nil
}

func (b *busyReplica) isReleased() error {
	lease, err := b.getLease()
	if err != nil {
		return err
	}
	if s := lease.Spec; *s.HolderIdentity != "" || *s.LeaseDurationSeconds != 1 {
		return fmt.Errorf("the lease was not released: %+v", s)
	}
	return nil
}

// waitForStepDown waits until the first term has ended.
func (b *busyReplica) waitForStepDown() error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	return testkit.Poll(ctx, func(context.Context) error {
		if len(b.log.find("Term ended, will campaign again")) == 0 {
			return errors.New("the replica has not stepped down")
		}
		return nil
	})
}

// shutdownMany calls shutdown for many replicas, several at a time. It starts no further calls after a failure.
func (h *harness) shutdownMany(policy replica.FailurePolicy, shutdown func(b *busyReplica) error) {
	h.Helper()
	var failed atomic.Bool
	var next atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for slot := range concurrentShutdowns {
		all.Go(func() {
			for n := next.Add(1); n <= int64(*shutdowns) && !failed.Load(); n = next.Add(1) {
				lease := fmt.Sprintf("lease-%d", n)
				b, err := h.busyReplica(lease, slot, policy)
				if err == nil {
					err = shutdown(b)
				}
				if err != nil {
					failed.Store(true)
					h.Errorf("%s: %v", lease, err)
					if b != nil {
						h.Logf("the log of the replica:\n%s", strings.Join(b.log.find(), "\n"))
					}
				}
			}
		})
	}
	all.Wait()
	h.Logf("%d shutdowns in %s", *shutdowns, time.Since(began).Round(time.Millisecond))
}

func TestL1_ShutdownWithWritesInFlightDoesNotHang(t *testing.T) {
	newHarness(t).shutdownMany(replica.ExitOnFailure, func(b *busyReplica) error {
		b.start()
		b.wrote.Wait()
		return errors.Join(b.shutdown(), b.isReleased())
	})
}

func TestL1_StepDownWithWritesInFlightDoesNotHang(t *testing.T) {
	newHarness(t).shutdownMany(replica.StepDown, func(b *busyReplica) error {
		err := b.Register("failing", replica.RunFunc(func(ctx context.Context) error {
			b.wrote.Wait()
			if term, _ := replica.Term(ctx); term == 1 {
				return errors.New("failed for the test")
			}
			<-ctx.Done()
			return nil
		}), replica.ScopeLeader)
		if err != nil {
			return err
		}
		b.start()
		if err := b.waitForStepDown(); err != nil {
			b.cancel()
			return err
		}
		return errors.Join(b.wasReleased(), b.shutdown(), b.isReleased())
	})
}

// logLines stores the log lines of a replica.
type logLines struct {
	mu    sync.Mutex // guards lines
	lines []string
}

func (l *logLines) logger() logr.Logger {
	return funcr.New(func(_, line string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, line)
	}, funcr.Options{})
}

// find returns the lines that contain all of the texts.
func (l *logLines) find(texts ...string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			found = append(found, line)
		}
	}
	return found
}

func TestL1_TerminatingNamespaceIsNotAMissingPermission(t *testing.T) {
	h := newHarness(t)
	namespaces, configMaps := h.clients.CoreV1().Namespaces(), h.clients.CoreV1().ConfigMaps(h.namespace)
	blocking := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "blocking", Finalizers: []string{"example.com/test"}},
	}
	_, err := configMaps.Create(h.Context(), blocking, metav1.CreateOptions{})
	h.noError(err)
	t.Cleanup(func() {
		patch := []byte(`{"metadata":{"finalizers":null}}`)
		_, err := configMaps.Patch(context.Background(), blocking.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		h.noError(err)
	})
	h.noError(namespaces.Delete(h.Context(), h.namespace, metav1.DeleteOptions{}))
	h.eventually("the namespace is terminating", func() error {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}}
		_, err := configMaps.Create(h.Context(), probe, metav1.CreateOptions{})
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return fmt.Errorf("created: %w", err)
		}
		return nil
	})
	log := &logLines{}
	a := h.loggedMember(log.logger(), "a").start()
	h.eventually("the failure is logged", func() error {
		if len(log.find(`"verb"="create"`, "because it is being terminated")) == 0 {
			return errors.New("not logged")
		}
		return nil
	})
	h.noError(a.stop())
	if lines := log.find("Permission missing"); len(lines) > 0 {
		t.Errorf("a missing permission was logged: %s", lines)
	}
}

func TestL1_ForbiddenReleaseIsNotRetried(t *testing.T) {
	h := newHarness(t)
	restricted := h.onlyLeases()
	log := &logLines{}
	a := restricted.loggedMember(log.logger(), "a", func(o *replica.Options) {
		o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = 60*time.Second, 40*time.Second, 10*time.Second
	}).start()
	a.waitForStart(1)
	bindings := h.clients.RbacV1().RoleBindings(h.namespace)
	h.noError(bindings.Delete(h.Context(), "a-replica", metav1.DeleteOptions{}))
	leases := must(kubernetes.NewForConfig(restricted.config)).CoordinationV1().Leases(h.namespace)
	h.eventually("the permission is revoked", func() error {
		if _, err := leases.Get(h.Context(), leaseName, metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("the request is allowed: %w", err)
		}
		return nil
	})
	began := time.Now()
	h.noError(a.stop())
	if took := time.Since(began); took > 10*time.Second { // ShutdownTimeout is 25 s, and RenewDeadline is 40 s
		t.Errorf("Run returned after %s, want at most 10s", took)
	}
	lines := log.find("Lease not released", `"error"=`, `"verb"="get"`, `"resource"="leases.coordination.k8s.io"`)
	if len(lines) != 1 {
		t.Errorf("the error was logged %d times, want once: %s", len(lines), log.find())
	}
}

// A replica loses its Lease while a handler ignores its context. It does not lead again, although the Lease names it,
// until the handler has returned.
func TestL1_HungHandlerKeepsItsReplicaFromLeading(t *testing.T) {
	h := newHarness(t)
	network := &wire{}
	wired := network.through(h)
	gvr := h.widgets()
	h.apply(gvr, "w", 0)
	var calls atomic.Int64
	release := make(chan struct{})
	engine := wired.controller(dynamiccontroller.Config{ShutdownTimeout: time.Second})
	h.serve(engine, gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
		if calls.Add(1) == 1 {
			<-release
		}
		return nil
	})
	options := replicaOptions(h, "a")
	options.ShutdownTimeout = 2 * time.Second
	r := must(replica.New(h.logger(), wired.config, options))
	h.noError(errors.Join(
		r.RegisterWithoutLeaderElection("watches", engine.Watches()),
		r.Register("engine", engine, replica.ScopeLeader),
	))
	stop := h.start(r.Run)
	h.eventually("the handler is called", func() error {
		if calls.Load() == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	network.set(func(*http.Request, send) (*http.Response, error) { return nil, errors.New("disconnected") })
	h.eventually("the Lease is lost", func() error {
		if r.Status().Leading {
			return errors.New("the replica leads")
		}
		return nil
	})
	network.set(nil)
	h.eventually("the handler is reported", func() error {
		if err := r.Alive(); err == nil || !strings.Contains(err.Error(), "engine") {
			return fmt.Errorf("got the error %w", err)
		}
		return nil
	})
	if r.Status().Leading || calls.Load() > 1 {
		t.Errorf("the replica leads again while the handler hangs, which was called %d times", calls.Load())
	}
	close(release)
	h.eventually("the replica leads again, and calls the handler", func() error {
		if calls.Load() == 1 {
			return errors.New("it has not")
		}
		return nil
	})
	h.noError(errors.Join(r.Alive(), stop()))
}
