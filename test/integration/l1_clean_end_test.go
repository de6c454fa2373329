package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
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
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

var ends = flag.Int("ends", 200, "number of clean ends, and of StepDowns, of replicas with writes in flight")

const (
	busyWriters  = 8
	endsAtOnce   = 4
	longestDelay = 20 * time.Millisecond
)

// delayed is a layer of a client, such as one that traces or logs requests.
func delayed(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		time.Sleep(rand.N(longestDelay))
		return next.RoundTrip(r)
	})
}

// busyReplica is a replica whose leading half writes without a pause.
type busyReplica struct {
	*replica.Replica
	h      *harness
	lease  string
	log    logLines
	wrote  sync.WaitGroup // done when each writer has written once
	result chan error     // of Run
	cancel context.CancelFunc
}

func (h *harness) busyReplica(lease string, slot int, policy replica.FailurePolicy) (*busyReplica, error) {
	b := &busyReplica{h: h, lease: lease, result: make(chan error, 1)}
	o := replicaOptions(h, lease)
	o.LeaseName, o.OnFailure, o.Log = lease, policy, b.log.logger()
	r, err := replica.New(h.config, o)
	if err != nil {
		return nil, err
	}
	config := r.FencedConfig()
	config.QPS = -1
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
				_, err := clients.CoreV1().ConfigMaps(h.namespace).Apply(ctx, object, metav1.ApplyOptions{FieldManager: "test", Force: true})
				if err != nil {
					return fmt.Errorf("write: %w", err) // which must count as ctx's end if that is what it was
				}
				first()
			}
		}))
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

// end ends Run cleanly.
func (b *busyReplica) end() error {
	b.cancel()
	select {
	case err := <-b.result:
		return err
	case <-time.After(deadline):
		return fmt.Errorf("the end hangs: Run has not returned within %s", deadline)
	}
}

func (b *busyReplica) getLease() (*coordinationv1.Lease, error) {
	return b.h.clients.CoordinationV1().Leases(b.h.namespace).Get(b.h.Context(), b.lease, metav1.GetOptions{})
}

// wasReleased returns nil if the lease was released, even if it was acquired again since. The number of transitions grows
// only if the lease did not name its holder.
func (b *busyReplica) wasReleased() error {
	lease, err := b.getLease()
	if err != nil {
		return err
	}
	if s := lease.Spec; *s.HolderIdentity != "" && *s.LeaseTransitions == 0 {
		return fmt.Errorf("the lease is not released: %+v", s)
	}
	return nil
}

func (b *busyReplica) isReleased() error {
	lease, err := b.getLease()
	if err != nil {
		return err
	}
	if s := lease.Spec; *s.HolderIdentity != "" || *s.LeaseDurationSeconds != 1 {
		return fmt.Errorf("the lease is not released: %+v", s)
	}
	return nil
}

// waitForStepDown waits until the first term is over and the next campaign is due.
func (b *busyReplica) waitForStepDown() error {
	for over := time.Now().Add(deadline); len(b.log.find("campaigning again")) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(over) {
			return fmt.Errorf("the replica has not stepped down within %s", deadline)
		}
	}
	return nil
}

// manyEnds calls end for -ends replicas, some of them at once, until one fails.
func (h *harness) manyEnds(policy replica.FailurePolicy, end func(b *busyReplica) error) {
	h.Helper()
	var failed atomic.Bool
	var next atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for slot := range endsAtOnce {
		all.Go(func() {
			for n := next.Add(1); n <= int64(*ends) && !failed.Load(); n = next.Add(1) {
				lease := fmt.Sprintf("lease-%d", n)
				b, err := h.busyReplica(lease, slot, policy)
				if err == nil {
					err = end(b)
				}
				if err != nil {
					failed.Store(true)
					h.Errorf("%s: %v", lease, err)
				}
			}
		})
	}
	all.Wait()
	h.Logf("%d ends in %s", *ends, time.Since(began).Round(time.Millisecond))
}

func TestL1_CleanEndsWithWritesInFlightDoNotHang(t *testing.T) {
	newHarness(t).manyEnds(replica.ExitOnFailure, func(b *busyReplica) error {
		b.start()
		b.wrote.Wait()
		return errors.Join(b.end(), b.isReleased())
	})
}

func TestL1_StepDownsWithWritesInFlightDoNotHang(t *testing.T) {
	newHarness(t).manyEnds(replica.StepDown, func(b *busyReplica) error {
		err := b.Register("fails", replica.RunFunc(func(ctx context.Context) error {
			b.wrote.Wait()
			if term, _ := replica.Term(ctx); term == 1 {
				return errors.New("for the test")
			}
			<-ctx.Done()
			return nil
		}))
		if err != nil {
			return err
		}
		b.start()
		if err := b.waitForStepDown(); err != nil {
			b.cancel()
			return err
		}
		return errors.Join(b.wasReleased(), b.end(), b.isReleased())
	})
}

// logLines keeps what a replica logs.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) logger() logr.Logger {
	return funcr.New(func(_, line string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, line)
	}, funcr.Options{})
}

// find returns the lines that contain all words.
func (l *logLines) find(words ...string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		all := true
		for _, word := range words {
			all = all && strings.Contains(line, word)
		}
		if all {
			found = append(found, line)
		}
	}
	return found
}

func TestL1_ATerminatingNamespaceIsNotReportedAsMissingPermission(t *testing.T) {
	h := newHarness(t)
	namespaces, configMaps := h.clients.CoreV1().Namespaces(), h.clients.CoreV1().ConfigMaps(h.namespace)
	holdsUp := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "holds-up", Finalizers: []string{"example.com/test"}}}
	_, err := configMaps.Create(h.Context(), holdsUp, metav1.CreateOptions{})
	h.noError(err)
	t.Cleanup(func() {
		patch := []byte(`{"metadata":{"finalizers":null}}`)
		_, err := configMaps.Patch(context.Background(), holdsUp.Name, "application/merge-patch+json", patch, metav1.PatchOptions{})
		h.noError(err)
	})
	h.noError(namespaces.Delete(h.Context(), h.namespace, metav1.DeleteOptions{}))
	h.eventually("nothing can be created in the namespace", func() error {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}}
		_, err := configMaps.Create(h.Context(), probe, metav1.CreateOptions{})
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return fmt.Errorf("created: %w", err)
		}
		return nil
	})
	log := &logLines{}
	a := h.member("a", func(o *replica.Options) { o.Log = log.logger() }).start()
	h.eventually("the failure is logged", func() error {
		if len(log.find(`"verb"="create"`, "because it is being terminated")) == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	h.noError(a.stop())
	if lines := log.find("Permission missing"); len(lines) > 0 {
		t.Errorf("missing permissions are logged: %s", lines)
	}
}

func TestL1_AForbiddenReleaseIsNotRetried(t *testing.T) {
	h := newHarness(t)
	restricted := h.onlyLeases()
	log := &logLines{}
	a := restricted.member("a", func(o *replica.Options) {
		o.Log = log.logger()
		o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = 60*time.Second, 40*time.Second, 10*time.Second
	}).start()
	a.waitForLife(1)
	bindings := h.clients.RbacV1().RoleBindings(h.namespace)
	h.noError(bindings.Delete(h.Context(), "a-replica", metav1.DeleteOptions{}))
	leases := must(kubernetes.NewForConfig(restricted.config)).CoordinationV1().Leases(h.namespace)
	h.eventually("the permission is revoked", func() error {
		if _, err := leases.Get(h.Context(), leaseName, metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("it is not: %w", err)
		}
		return nil
	})
	began := time.Now()
	h.noError(a.stop())
	if took := time.Since(began); took > 10*time.Second { // ShutdownTimeout is 25 s, RenewDeadline 40 s
		t.Errorf("the end took %s", took)
	}
	if lines := log.find(`"error"=`, "Lease not released", `"verb"="get"`, `"resource"="leases.coordination.k8s.io"`); len(lines) != 1 {
		t.Errorf("the log has %d such lines: %s", len(lines), log.find(""))
	}
}
