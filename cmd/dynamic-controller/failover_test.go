package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

// instanceCount is the number of instances in the failover tests.
const instanceCount = 10

func (a *api) eachFlower(f func(name, text string)) {
	for i := range instanceCount {
		name := fmt.Sprintf("flowers-%d", i)
		f(name, changed(flowers, change{"name: flowers", "name: " + name}))
	}
}

// leaseGate rejects requests for Leases while it is closed.
type leaseGate struct{ closed atomic.Bool }

func (g *leaseGate) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if g.closed.Load() && apiproxy.CallOf(r).Resource == "leases" {
			return nil, errors.New("the gate is closed")
		}
		return next.RoundTrip(r)
	})
}

func TestL5_WarmStandbyReplacesAKilledLeader(t *testing.T) {
	a := newAPI(t)
	gate := &leaseGate{}
	kubeconfig, proxy := a.proxied(gate.wrap)
	// On a busy machine, a renewal can take longer than the deadline of shortLease. The lost term would interrupt writes.
	lease := []string{"--leader-elect-lease-duration", "8s", "--leader-elect-renew-deadline", "6s"}
	first := startServing(t, a.cluster.Kubeconfig(), lease...)
	a.apply(websites)
	a.eachFlower(func(name, text string) { a.apply(text) })
	a.eachFlower(func(name, _ string) { a.wait("GROUP/v1", "Website", name, is("Ready", "True")) })

	second := startReplica(t, kubeconfig, lease...)
	second.waitReady()
	// A standby also serves types that are added or changed later.
	a.apply(markets)
	a.apply(market)
	a.wait("GROUP/v1", "Market", "monday", is("Ready", "True"))
	a.apply(changed(websites, change{"${self.spec.text}", "fresh ${self.spec.text}"}))
	a.wait("v1", "ConfigMap", "flowers-0-page", has("fresh roses", "data", "text"))
	eventually(t, func() error {
		for _, want := range []line{{GVR: "websites", Generation: 2}, {GVR: "markets"}} {
			if want.Msg = "Type started"; len(second.logged(want)) == 0 {
				return fmt.Errorf("the standby does not serve %s of generation %d yet", want.GVR, want.Generation)
			}
		}
		for _, c := range proxy.Calls() {
			if c.Resource == "markets" && c.Verb == "watch" {
				return nil
			}
		}
		return fmt.Errorf("the standby does not watch markets yet")
	})
	// Only the leader logs decisions, with its term and the ID of the reconcile.
	first.waitLog(line{Msg: "Blueprint served", Type: "markets", Term: 1, ReconcileID: "-"})
	if got := second.logged(line{Msg: "Blueprint "}); len(got) > 0 {
		t.Errorf("a standby logged the decisions %+v", got)
	}
	for _, c := range proxy.Calls() {
		if isWrite(c) {
			t.Errorf("a standby wrote %+v", c)
		}
	}

	// The new generation of Websites is reported as served before its watches start.
	waitUntilQuiet(t, func() int { return count(proxy, isListOrWatch) })
	before := len(proxy.Calls())
	// While the gate is closed, the standby cannot become the leader.
	gate.closed.Store(true)
	first.crash()
	a.eachFlower(func(_, text string) { a.apply(changed(text, change{"roses", "tulips"})) })
	a.delete("v1", "ConfigMap", "monday-page")
	if n := len(second.logged(line{Msg: "Started leading"})); n > 0 {
		t.Fatal("the standby became the leader before the instances were changed")
	}
	gate.closed.Store(false)
	second.waitLog(line{Msg: "Started leading", Term: 1})
	a.eachFlower(func(name, _ string) {
		a.wait("v1", "ConfigMap", name+"-page", has("fresh tulips", "data", "text"))
		a.wait("GROUP/v1", "Website", name, is("Ready", "True"))
	})
	a.wait("v1", "ConfigMap", "monday-page", has("fresh fish", "data", "text"))
	waitUntilQuiet(t, func() int { return writes(proxy) })
	patched := map[string]int{}
	for _, c := range proxy.Calls()[before:] {
		if isListOrWatch(c) {
			t.Errorf("the promotion caused a request: %+v", c)
		}
		if isWrite(c) && c.Resource == "configmaps" && c.Status < http.StatusBadRequest { // others are retried
			patched[c.Name]++
		}
	}
	// Each changed object was written exactly once.
	a.eachFlower(func(name, _ string) {
		if n := patched[name+"-page"]; n != 1 {
			t.Errorf("%s-page was written %d times, want once", name, n)
		}
	})
	if len(patched) != instanceCount+1 {
		t.Errorf("got writes %v", patched)
	}
}

func TestL1_ShutdownReleasesTheLease(t *testing.T) {
	a := newAPI(t)
	first := startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.waitBlueprint("websites", is("Serving", "True"))
	second := startReplica(t, a.cluster.Kubeconfig())
	second.waitReady()
	first.stop(syscall.SIGTERM)
	ended := time.Now()
	second.waitLog(line{Msg: "Started leading", Term: 1})
	if took := time.Since(ended); took >= leaseDuration {
		t.Errorf("the other replica became the leader only after %s; the Lease was not released", took)
	}
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
}

func TestL2_CampaignsAgainAfterALostLease(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig(), shortLease...)
	a.apply(websites)
	a.waitBlueprint("websites", is("Serving", "True"))
	p.loggedOnce(line{Msg: "Started leading", Term: 1})
	leases := a.kube.CoordinationV1().Leases(metav1.NamespaceDefault)
	eventually(t, func() error { // retries on conflicts with the holder's updates
		lease, err := leases.Get(t.Context(), leaseOf(t), metav1.GetOptions{})
		if err != nil {
			return err
		}
		lease.Spec.HolderIdentity = ptr.To("another-replica")
		_, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{})
		return err
	})
	p.waitLog(line{Msg: "Lease lost", Cause: "it is held by another-replica"})
	a.apply(flowers)
	p.waitLog(line{Msg: "Started leading", Term: 2}) // the other holder does not renew the Lease
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	p.waitLog(line{Msg: "Blueprint served", Type: "websites", Term: 2}) // each term logs all decisions
}

func TestLeaderElection_DisabledSendsNoLeaseRequests(t *testing.T) {
	a := newAPI(t)
	kubeconfig, proxy := a.proxied()
	start(t, runArgs(kubeconfig, "--leader-elect=false", "--health-probe-bind-address", "0")...)
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	for _, c := range proxy.Calls() {
		if c.Resource == "leases" {
			t.Errorf("got a request for a Lease: %+v", c)
		}
	}
}

func TestAPIServer_Restart(t *testing.T) {
	a := newAPI(t)
	a.requireOwnServer()
	startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	if err := a.cluster.APIServer().Kill(); err != nil {
		t.Fatal(err)
	}
	if err := a.cluster.APIServer().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.apply(strings.ReplaceAll(flowers, "roses", "tulips"))
	a.wait("v1", "ConfigMap", "flowers-page", has("tulips", "data", "text"))
}

func TestSignals_ExitWhileTheAPIServerHangs(t *testing.T) {
	a := newAPI(t)
	a.requireOwnServer()
	p := startServing(t, a.cluster.Kubeconfig(), shortLease...)
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	if err := a.cluster.APIServer().Pause(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.cluster.APIServer().Resume(); err != nil {
			t.Error(err)
		}
	}()
	const slow = 10 * time.Second // half of the shutdown timeout
	if took := p.stop(syscall.SIGTERM); took > slow {
		t.Errorf("the shutdown took %s, want less than %s", took, slow)
	}
}

// requireOwnServer skips the test on an existing cluster, because the test stops the API server.
func (a *api) requireOwnServer() {
	a.Helper()
	if _, err := a.cluster.APIServer().PID(); err != nil {
		a.Skip(err)
	}
}
