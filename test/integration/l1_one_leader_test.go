package integration

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

func TestL1_TheLeaseIsRenewedUntilTheLastHasReturnedAndThenReleased(t *testing.T) {
	h := newHarness(t).onlyLeases()
	a := h.member("a")
	a.lingerUntil = make(chan struct{})
	a.start().waitForLife(1)
	lease := h.lease()
	if holder := *lease.Spec.HolderIdentity; !strings.HasPrefix(holder, "a_") || lease.Labels["app"] != "test" || *lease.Spec.LeaseDurationSeconds != 3 {
		t.Fatalf("the lease is %+v", lease)
	}
	b := h.member("b").start()
	h.eventually("the standby knows who leads", func() error {
		if got := b.Status(); got.Leader != a.Status().Identity || got.Leading {
			return errors.New(got.Leader)
		}
		return nil
	})

	ended := make(chan error, 1)
	go func() { ended <- a.stop() }()
	at, _ := a.waitForLoss()
	h.eventually("the lease is renewed for longer than it lasts", func() error {
		lease := h.lease()
		if holder := *lease.Spec.HolderIdentity; !strings.HasPrefix(holder, "a_") {
			t.Fatalf("the lease is held by %q while a's work has not returned", holder)
		}
		if lease.Spec.RenewTime.Sub(at) < 4*time.Second {
			return errors.New("not yet")
		}
		return nil
	})
	if starts, _, _, _ := b.leads.get(); starts != 0 {
		t.Fatal("b leads while a's work has not returned")
	}
	released := time.Now()
	close(a.lingerUntil)
	h.noError(<-ended)
	b.waitForLife(1)
	t.Logf("handed over in %s, of %s", time.Since(released), retryPeriod*22/10)
	h.noError(b.stop())
	if lease := h.lease(); *lease.Spec.HolderIdentity != "" || *lease.Spec.LeaseDurationSeconds != 1 || *lease.Spec.LeaseTransitions != 1 {
		t.Errorf("b has left the lease as %+v", lease.Spec)
	}
}

func TestL1_WhatHappensToTheLeaseEndsTheTermAtTheFirstSight(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(h *harness)
		says string
	}{
		"it is deleted": {func(h *harness) {
			h.noError(h.clients.CoordinationV1().Leases(h.namespace).Delete(h.Context(), leaseName, metav1.DeleteOptions{}))
		}, "deleted"},
		"it is emptied": {func(h *harness) {
			h.editLease(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil })
		}, "emptied"},
		"it is taken by force": {func(h *harness) {
			h.editLease(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("thief") })
		}, "held by thief"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t).onlyLeases()
			a := h.member("a").start()
			a.waitForLife(1)
			b := h.member("b").start()
			h.eventually("the standby has seen the lease", func() error {
				if b.Status().Leader == "" {
					return errors.New("it has not")
				}
				return nil
			})
			c.do(h)
			changed := time.Now()
			at, cause := a.waitForLoss()
			if !errors.Is(cause, replica.ErrLeaseLost) || !strings.Contains(cause.Error(), c.says) {
				t.Errorf("the term ended with %v", cause)
			}
			t.Logf("seen after %s, of %s and a request", at.Sub(changed), retryPeriod)
			h.eventually("one of them leads again", func() error {
				if !a.Status().Leading && !b.Status().Leading {
					return errors.New("neither does")
				}
				return nil
			})
			if after := time.Since(changed); after < 3*time.Second {
				t.Errorf("someone leads after %s", after)
			}
			for _, m := range []*member{a, b} {
				if starts, running, _, _ := m.everywhere.get(); starts != 1 || !running {
					t.Errorf("the per-replica half was started %d times, and runs: %t", starts, running)
				}
				h.noError(m.stop())
			}
		})
	}
}

func TestL1_AReplicaThatMayNotLeadSaysWhichRightItLacks(t *testing.T) {
	h := newHarness(t)
	stranger := *h
	stranger.config = rest.CopyConfig(h.config)
	stranger.config.Impersonate = rest.ImpersonationConfig{UserName: "a-stranger"}
	said := make(chan string, 100)
	a := stranger.member("a", func(o *replica.Options) {
		o.Log = funcr.New(func(_, line string) {
			select {
			case said <- line:
			default: // it says too much, which the test sees
			}
		}, funcr.Options{})
	}).start()
	want := []string{`"error"=`, "forbidden", `"verb"="get"`, `"resource"="leases.coordination.k8s.io"`, h.namespace + "/" + leaseName}
	h.eventually("it says so", func() error {
		select {
		case line := <-said:
			if slices.ContainsFunc(want, func(word string) bool { return !strings.Contains(line, word) }) {
				return errors.New(line)
			}
			return nil
		default:
			return errors.New("it says nothing")
		}
	})
	h.noError(a.Alive())
	h.noError(a.Ready())
	h.noError(a.stop())
	close(said)
	for line := range said {
		if strings.Contains(line, "right that it lacks") {
			t.Errorf("it says it again: %s", line)
		}
	}
}
