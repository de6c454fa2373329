package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

func TestL1_ShutdownRenewsLeaseUntilAllRunnablesReturn(t *testing.T) {
	h := newHarness(t).onlyLeases()
	a := h.member("a")
	a.lingerUntil = make(chan struct{})
	a.start().waitForStart(1)
	lease := h.lease()
	holder := *lease.Spec.HolderIdentity
	if !strings.HasPrefix(holder, "a_") || lease.Labels["app"] != "test" || *lease.Spec.LeaseDurationSeconds != 3 {
		t.Fatalf("got unexpected lease %+v", lease)
	}
	b := h.member("b").start()
	h.eventually("the standby observes the leader", func() error {
		if got := b.Status(); got.Leader != a.Status().Identity || got.Leading {
			return errors.New(got.Leader)
		}
		return nil
	})

	result := make(chan error, 1)
	go func() { result <- a.stop() }()
	stopped, _ := a.waitForCancel()
	h.eventually("the lease is renewed for longer than its duration", func() error {
		lease := h.lease()
		if holder := *lease.Spec.HolderIdentity; !strings.HasPrefix(holder, "a_") {
			t.Fatalf("the lease is held by %q while a runnable of replica a is running", holder)
		}
		if age := lease.Spec.RenewTime.Sub(stopped); age < 4*time.Second {
			return fmt.Errorf("renewed for %s", age)
		}
		return nil
	})
	if starts, _, _, _ := b.leaderGated.get(); starts != 0 {
		t.Fatal("replica b leads while a runnable of replica a is running")
	}
	returned := time.Now()
	close(a.lingerUntil)
	h.noError(<-result)
	b.waitForStart(1)
	t.Logf("replica b leads after %s (expected: at most %s)", time.Since(returned), retryPeriod*22/10)
	h.noError(b.stop())
	if s := h.lease().Spec; *s.HolderIdentity != "" || *s.LeaseDurationSeconds != 1 || *s.LeaseTransitions != 1 {
		t.Errorf("got lease %+v after both replicas were stopped, want a released lease with one transition", s)
	}
}

func TestL1_FirstRequestAfterLeaseChangeEndsTerm(t *testing.T) {
	for name, test := range map[string]struct {
		change func(h *harness)
		want   string // a part of the cause
	}{
		"deleted": {func(h *harness) {
			h.noError(h.clients.CoordinationV1().Leases(h.namespace).Delete(h.Context(), leaseName, metav1.DeleteOptions{}))
		}, "deleted"},
		"emptied": {func(h *harness) {
			h.editLease(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil })
		}, "emptied"},
		"taken by force": {func(h *harness) {
			h.editLease(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("intruder") })
		}, "held by intruder"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t).onlyLeases()
			a := h.member("a").start()
			a.waitForStart(1)
			b := h.member("b").start()
			h.eventually("the standby observes the lease", func() error {
				if b.Status().Leader == "" {
					return errors.New("no leader")
				}
				return nil
			})
			test.change(h)
			changed := time.Now()
			cancelled, cause := a.waitForCancel()
			if !errors.Is(cause, replica.ErrLeaseLost) || !strings.Contains(cause.Error(), test.want) {
				t.Errorf("the term ended with cause %v", cause)
			}
			t.Logf("the term ended after %s (expected: at most %s plus one request)", cancelled.Sub(changed), retryPeriod)
			h.eventually("a replica leads", func() error {
				if !a.Status().Leading && !b.Status().Leading {
					return errors.New("no leader")
				}
				return nil
			})
			if after := time.Since(changed); after < 3*time.Second {
				t.Errorf("a replica leads again after %s, want at least 3s", after)
			}
			for _, m := range []*member{a, b} {
				m.wantPerReplicaRunning()
				h.noError(m.stop())
			}
		})
	}
}

func TestL1_MissingPermissionIsLoggedOnce(t *testing.T) {
	h := newHarness(t)
	unprivileged := *h
	unprivileged.config = rest.CopyConfig(h.config)
	unprivileged.config.Impersonate = rest.ImpersonationConfig{UserName: "unprivileged"}
	log := &logLines{}
	a := unprivileged.loggedMember(log.logger(), "a").start()
	h.eventually("the missing permission is logged", func() error {
		if len(log.find("Permission missing")) == 0 {
			return errors.New("not logged")
		}
		return nil
	})
	h.noError(a.Alive())
	h.noError(a.Ready())
	h.noError(a.stop())
	lines := log.find("Permission missing", `"error"=`, "forbidden", `"verb"="get"`, h.namespace+"/"+leaseName,
		`"resource"="leases.coordination.k8s.io"`)
	if all := log.find("Permission missing"); len(lines) != 1 || len(all) != 1 {
		t.Errorf("got log lines %s, want one line that contains all details", all)
	}
}
