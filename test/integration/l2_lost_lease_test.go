package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/test/cluster"
)

func TestL2_WritesAreRefusedAfterALoss(t *testing.T) {
	h := newHarness(t)
	a := h.member("a")
	clients := must(kubernetes.NewForConfig(a.FencedConfig()))
	configMaps := clients.CoreV1().ConfigMaps(h.namespace)
	write := func(name string) error {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, err := configMaps.Create(h.Context(), object, metav1.CreateOptions{})
		return err
	}
	patch := func() error {
		data := []byte(`{"data":{"a":"b"}}`)
		_, err := configMaps.Patch(h.Context(), "first", types.MergePatchType, data, metav1.PatchOptions{})
		return err
	}
	wantRefused := func(when string) {
		t.Helper()
		for verb, err := range map[string]error{
			"create": write("refused"),
			"patch":  patch(),
			"delete": configMaps.Delete(h.Context(), "first", metav1.DeleteOptions{}),
		} {
			var interrupted interface{ Interrupted() bool }
			if !errors.Is(err, replica.ErrNotLeading) || !errors.As(err, &interrupted) || !interrupted.Interrupted() {
				t.Errorf("%s %s: got error %v, want %v", verb, when, err, replica.ErrNotLeading)
			}
		}
		if _, err := configMaps.List(h.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("read %s: %v", when, err)
		}
	}
	wantRefused("before the first term")
	a.start().waitForStart(1)
	h.noError(write("first"))
	h.editLease(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("intruder") })
	_, _ = a.waitForCancel()
	wantRefused("after the loss")
	a.waitForStart(2)
	h.noError(write("second"))
	if got := a.Status(); got.Term != 2 || !got.Leading {
		t.Errorf("got status %+v, want the replica to lead in term 2", got)
	}
	h.noError(a.stop())
	wantRefused("after Run")
	list, err := h.clients.CoreV1().ConfigMaps(h.namespace).List(h.Context(), metav1.ListOptions{})
	h.noError(err)
	names := map[string]bool{}
	for _, cm := range list.Items {
		names[cm.Name] = true
	}
	if !names["first"] || !names["second"] || names["refused"] {
		t.Errorf("got ConfigMaps %v, want first and second", names)
	}
}

// If a connection hangs, only one request may fail.
func TestL2_HungConnectionDoesNotEndTheTerm(t *testing.T) {
	h := newHarness(t)
	d := &hangingDialer{}
	client := *h
	client.config = rest.CopyConfig(h.config)
	client.config.Dial = d.dial
	a := client.member("a").start()
	a.waitForStart(1)
	for range 3 {
		before := d.hang()
		h.eventually("the replica opens a new connection", func() error {
			if starts, running, _, cause := a.leaderGated.get(); starts != 1 || !running {
				t.Fatalf("the lease was lost: %v", cause)
			}
			if d.count() == before {
				return errors.New("no new connection")
			}
			return nil
		})
		connected := time.Now()
		h.eventually("the lease is renewed", func() error {
			if renewed := h.lease().Spec.RenewTime; !renewed.After(connected) {
				return fmt.Errorf("last renewed at %s", renewed)
			}
			return nil
		})
	}
	h.noError(a.stop())
	if starts, _, _, cause := a.leaderGated.get(); starts != 1 || errors.Is(cause, replica.ErrLeaseLost) {
		t.Errorf("got %d terms, want 1; the last one ended with cause %v", starts, cause)
	}
}

func TestL2_UnavailableAPIServerEndsOnlyOneTerm(t *testing.T) {
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
	for name, test := range map[string]struct{ stop, start func() error }{
		"suspended": {api.Pause, api.Resume},
		"stopped":   {api.Stop, func() error { return api.Start(ctx) }},
	} {
		t.Run(name, func(t *testing.T) {
			h := *h
			h.T = t
			a := h.member("a").start()
			a.waitForStart(1)
			stopped := time.Now()
			h.noError(test.stop())
			lost, cause := a.waitForCancel()
			if !errors.Is(cause, replica.ErrLeaseLost) {
				t.Errorf("the term ended with cause %v", cause)
			}
			if after := lost.Sub(stopped); after > 3*time.Second {
				t.Errorf("the term ended after %s, want at most 3s", after)
			}
			fenced := must(kubernetes.NewForConfig(a.FencedConfig()))
			err := fenced.CoreV1().ConfigMaps("default").Delete(t.Context(), "x", metav1.DeleteOptions{})
			if !errors.Is(err, replica.ErrNotLeading) {
				t.Errorf("a write returned error %v, want %v", err, replica.ErrNotLeading)
			}
			h.noError(a.Alive())
			h.noError(a.Ready())
			time.Sleep(time.Until(stopped.Add(4 * time.Second))) // longer than the lease duration
			h.noError(test.start())
			h.noError(own.WaitReady(ctx))
			ready := time.Now()
			a.waitForStart(2)
			t.Logf("the term ended after %s, and the next one began %s after the API server was ready",
				lost.Sub(stopped), time.Since(ready))
			a.wantPerReplicaRunning()
			h.noError(a.stop())
			if holder := h.lease().Spec.HolderIdentity; *holder != "" {
				t.Errorf("after Run, the lease is held by %q, want no holder", *holder)
			}
		})
	}
}
