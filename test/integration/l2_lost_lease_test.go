package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/test/cluster"
)

func TestL2_NoWriteStartsOnceTheLeaseIsLost(t *testing.T) {
	h := newHarness(t)
	a := h.member("a")
	clients := must(kubernetes.NewForConfig(a.FencedConfig()))
	configMaps := clients.CoreV1().ConfigMaps(h.namespace)
	write := func(name string) error {
		_, err := configMaps.Create(h.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	refused := func(when string) {
		t.Helper()
		for verb, err := range map[string]error{
			"create": write("refused"),
			"patch": func() error {
				_, err := configMaps.Patch(h.Context(), "first", "application/merge-patch+json", []byte(`{"data":{"a":"b"}}`), metav1.PatchOptions{})
				return err
			}(),
			"delete": configMaps.Delete(h.Context(), "first", metav1.DeleteOptions{}),
		} {
			var interrupted interface{ Interrupted() bool }
			if !errors.Is(err, replica.ErrNotLeading) || !errors.As(err, &interrupted) || !interrupted.Interrupted() {
				t.Errorf("%s %s: %v", verb, when, err)
			}
		}
		if _, err := configMaps.List(h.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("a read %s: %v", when, err)
		}
	}
	refused("before it leads")
	a.start().waitForLife(1)
	h.noError(write("first"))
	h.editLease(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("thief") })
	_, _ = a.waitForLoss()
	refused("after the loss")
	a.waitForLife(2)
	h.noError(write("second"))
	if got := a.Status(); got.Term != 2 || !got.Leading {
		t.Errorf("status %+v", got)
	}
	h.noError(a.stop())
	refused("after the end")
	list, err := h.clients.CoreV1().ConfigMaps(h.namespace).List(h.Context(), metav1.ListOptions{})
	h.noError(err)
	names := map[string]bool{}
	for _, cm := range list.Items {
		names[cm.Name] = true
	}
	if !names["first"] || !names["second"] || names["refused"] {
		t.Errorf("there are %v", names)
	}
}

// A connection that is dead without a word costs a request, and not the lease.
func TestL2_AConnectionThatHangsDoesNotCostTheLease(t *testing.T) {
	h := newHarness(t)
	f := &freezer{}
	frozen := *h
	frozen.config = rest.CopyConfig(h.config)
	frozen.config.Dial = f.dial
	a := frozen.member("a").start()
	a.waitForLife(1)
	for range 3 {
		before := f.freeze()
		h.eventually("the lease is renewed on a new connection", func() error {
			if starts, running, _, cause := a.leads.get(); starts != 1 || !running {
				t.Fatalf("the lease was lost: %v", cause)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.dialed == before {
				return errors.New("it is not")
			}
			return nil
		})
		frozenAt := time.Now()
		h.eventually("and again", func() error {
			if h.lease().Spec.RenewTime.After(frozenAt) {
				return nil
			}
			return errors.New("it is not")
		})
	}
	h.noError(a.stop())
	if starts, _, _, cause := a.leads.get(); starts != 1 || errors.Is(cause, replica.ErrLeaseLost) {
		t.Errorf("%d terms, the last ended with %v", starts, cause)
	}
}

func TestL2_AnAPIServerThatGoesAwayCostsATermAndNothingElse(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	own, err := cluster.Start(ctx, cluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	})
	config := own.Config()
	h := &harness{T: t, config: config, clients: must(kubernetes.NewForConfig(config)), namespace: "default"}
	api := own.APIServer()
	for name, c := range map[string]struct{ leave, comeBack func() error }{
		"it hangs": {api.Pause, api.Resume},
		"it ends":  {api.Stop, func() error { return api.Start(ctx) }},
	} {
		t.Run(name, func(t *testing.T) {
			h := *h
			h.T = t
			a := h.member("a").start()
			a.waitForLife(1)
			left := time.Now()
			h.noError(c.leave())
			at, cause := a.waitForLoss()
			if !errors.Is(cause, replica.ErrLeaseLost) {
				t.Errorf("the term ended with %v", cause)
			}
			if after := at.Sub(left); after > 3*time.Second {
				t.Errorf("lost only after %s", after)
			}
			fenced := must(kubernetes.NewForConfig(a.FencedConfig()))
			if err := fenced.CoreV1().ConfigMaps("default").Delete(t.Context(), "x", metav1.DeleteOptions{}); !errors.Is(err, replica.ErrNotLeading) {
				t.Errorf("a write: %v", err)
			}
			h.noError(a.Alive())
			h.noError(a.Ready())
			time.Sleep(time.Until(left.Add(4 * time.Second))) // longer than the lease
			h.noError(c.comeBack())
			h.noError(own.WaitReady(ctx))
			back := time.Now()
			a.waitForLife(2)
			t.Logf("lost after %s, leads again %s after the API server was back", at.Sub(left), time.Since(back))
			if starts, running, _, _ := a.everywhere.get(); starts != 1 || !running {
				t.Errorf("the per-replica half was started %d times, and runs: %t", starts, running)
			}
			h.noError(a.stop())
			if holder := h.lease().Spec.HolderIdentity; *holder != "" {
				t.Errorf("the lease is held by %q", *holder)
			}
		})
	}
}
