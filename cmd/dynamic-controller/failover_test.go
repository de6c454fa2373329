package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// many is how many instances there are in the tests of failover.
const many = 10

func (a *api) eachFlower(f func(name, text string)) {
	for i := range many {
		name := fmt.Sprintf("flowers-%d", i)
		f(name, changed(flowers, change{"name: flowers", "name: " + name}))
	}
}

func TestL5_AKilledLeaderIsFollowedByAWarmStandby(t *testing.T) {
	a := newAPI(t)
	kubeconfig, proxy := a.watched()
	first := startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.eachFlower(func(name, text string) { a.apply(text) })
	a.eachFlower(func(name, _ string) { a.wait("GROUP/v1", "Website", name, is("Ready", "True")) })

	second := startReplica(t, kubeconfig)
	second.waitReady()
	// What comes and changes while it stands by it follows too.
	a.apply(markets)
	a.apply(market)
	a.wait("GROUP/v1", "Market", "monday", is("Ready", "True"))
	a.apply(changed(websites, change{"${self.spec.text}", "fresh ${self.spec.text}"}))
	a.wait("v1", "ConfigMap", "flowers-0-page", has("fresh roses", "data", "text"))
	eventually(t, func() error {
		if n := len(second.logged(line{Msg: "Blueprint served"})); n != 3 {
			return fmt.Errorf("it serves %d times", n)
		}
		for _, c := range proxy.Calls() {
			if c.Resource == "markets" && c.Verb == "watch" {
				return nil
			}
		}
		return fmt.Errorf("it does not watch the markets yet")
	})
	for _, c := range proxy.Calls() {
		if isWrite(c) {
			t.Errorf("a standby wrote %+v", c)
		}
	}

	before := len(proxy.Calls())
	first.kill()
	began := time.Now()
	a.eachFlower(func(_, text string) { a.apply(changed(text, change{"roses", "tulips"})) })
	a.delete("v1", "ConfigMap", "monday-page")
	if n := len(second.logged(line{Msg: "leading"})); n > 0 {
		t.Fatal("the instances were to be changed while nobody leads")
	}
	second.waitLog(line{Msg: "leading", Term: 1})
	took := time.Since(began)
	a.eachFlower(func(name, _ string) {
		a.wait("v1", "ConfigMap", name+"-page", has("fresh tulips", "data", "text"))
		a.wait("GROUP/v1", "Website", name, is("Ready", "True"))
	})
	a.wait("v1", "ConfigMap", "monday-page", has("fresh fish", "data", "text"))
	t.Logf("it led %s after the other was killed; a lease lasts %s", took.Round(time.Millisecond), leaseDuration)

	quiet(t, func() int { return writes(proxy) })
	patched := map[string]int{}
	for _, c := range proxy.Calls()[before:] {
		if c.Verb == "list" || c.Verb == "watch" {
			t.Errorf("promotion asked for %+v", c)
		}
		if isWrite(c) && c.Resource == "configmaps" {
			patched[c.Name]++
		}
	}
	// Nothing was missed, as all is right, and what was changed was written once.
	a.eachFlower(func(name, _ string) {
		if n := patched[name+"-page"]; n != 1 {
			t.Errorf("%s-page was written %d times", name, n)
		}
	})
	if len(patched) != many+1 {
		t.Errorf("these were written: %v", patched)
	}
}

func TestL1_AReplicaThatIsToldToEndHandsOver(t *testing.T) {
	a := newAPI(t)
	first := startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.waitBlueprint("websites", is("Serving", "True"))
	second := startReplica(t, a.cluster.Kubeconfig())
	second.waitReady()
	first.end(syscall.SIGTERM)
	ended := time.Now()
	second.waitLog(line{Msg: "leading", Term: 1})
	if took := time.Since(ended); took >= leaseDuration {
		t.Errorf("it took %s, as if the lease had not been given back", took)
	}
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
}

func TestL2_AProcessOutlivesTheLossOfItsLease(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.waitBlueprint("websites", is("Serving", "True"))
	p.loggedOnce(line{Msg: "leading", Term: 1})
	leases := a.kube.CoordinationV1().Leases(metav1.NamespaceDefault)
	eventually(t, func() error { // its holder writes it too
		lease, err := leases.Get(t.Context(), leaseOf(t), metav1.GetOptions{})
		if err != nil {
			return err
		}
		lease.Spec.HolderIdentity = ptr.To("somebody else")
		_, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{})
		return err
	})
	p.waitLog(line{Msg: "the lease is lost", Cause: "it is held by somebody else"})
	a.apply(flowers)
	p.waitLog(line{Msg: "leading", Term: 2}) // as nobody renews it
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
}

func TestWithoutLeaderElectionNoLeaseIsTaken(t *testing.T) {
	a := newAPI(t)
	kubeconfig, proxy := a.watched()
	start(t, "run", "--kubeconfig", kubeconfig, "--leader-elect=false", "--health-probe-bind-address", "0")
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	for _, c := range proxy.Calls() {
		if c.Resource == "leases" {
			t.Errorf("it asked for a lease: %+v", c)
		}
	}
}

func TestTheProcessOutlivesItsAPIServer(t *testing.T) {
	a := newAPI(t)
	a.ownServer()
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

func TestASignalEndsTheProcessThoughTheAPIServerHangs(t *testing.T) {
	a := newAPI(t)
	a.ownServer()
	p := startServing(t, a.cluster.Kubeconfig())
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
	const slow = 10 * time.Second // half of what handlers are waited for
	if took := p.end(syscall.SIGTERM); took > slow {
		t.Errorf("it took %s", took)
	}
}

// ownServer skips on somebody else's cluster, whose API server is not the test's to break.
func (a *api) ownServer() {
	a.Helper()
	if _, err := a.cluster.APIServer().PID(); err != nil {
		a.Skip(err)
	}
}
