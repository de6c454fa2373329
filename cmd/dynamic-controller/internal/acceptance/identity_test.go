package acceptance

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
)

// identifies restarts the platform with other identity options.
func (c *cluster) identifies(o identity.Options) {
	c.t.Helper()
	identities, err := identity.New(&rest.Config{Host: "http://127.0.0.1:1"}, o)
	if err != nil {
		c.t.Fatal(err)
	}
	c.config.Identities = identities
	c.forgetDecisions()
	if err := c.Serve(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// storedAccounts returns the names of the ServiceAccounts of the stored revisions, in the order of their numbers.
func (c *cluster) storedAccounts() (names []string) {
	c.t.Helper()
	stored, err := c.definitions.cache.history("websites")
	if err != nil {
		c.t.Fatal(err)
	}
	slices.SortFunc(stored, func(a, b *revision) int { return int(a.number - b.number) })
	for _, r := range stored {
		names = append(names, r.serviceAccount)
	}
	return names
}

func (c *cluster) runsAs() string {
	c.t.Helper()
	d, _ := c.registry.get("websites")
	if d.running == nil {
		c.t.Fatal("nothing is served")
	}
	return d.running.Spec.ServiceAccountName
}

func TestIdentityRequired(t *testing.T) {
	c := newCluster(t, withFields(1, "one"))
	c.identifies(identity.Options{Namespace: "system"})
	c.reconcile()
	accepted := c.condition(blueprint.Accepted)
	const required = "spec.serviceAccountName: required; set it, or ask the operator to set --default-service-account"
	if accepted == nil || accepted.Status != metav1.ConditionFalse || accepted.Reason != identity.ReasonIdentityRequired ||
		accepted.Message != required {
		t.Errorf("got Accepted condition %+v", accepted)
	}
	if c.served() || c.crd() != nil || len(c.storedAccounts()) > 0 {
		t.Error("the rejected Blueprint is served")
	}
	for name, o := range map[string]identity.Options{
		"a default ServiceAccount is set":    {Namespace: "system", DefaultServiceAccount: "web"},
		"the platform's identity is allowed": {Namespace: "system", AllowPlatformIdentity: true},
	} {
		c := newCluster(t, withFields(1, "one"))
		c.identifies(o)
		c.reconcile()
		if accepted := c.condition(blueprint.Accepted); accepted == nil || accepted.Status != metav1.ConditionTrue {
			t.Errorf("%s: got Accepted condition %+v", name, accepted)
		}
		if got := c.runsAs(); got != o.DefaultServiceAccount {
			t.Errorf("%s: served as %q", name, got)
		}
	}
}

func TestIdentity_ResolvedNameIsStoredAndServed(t *testing.T) {
	c := newCluster(t, withFields(1, "one"))
	c.identifies(identity.Options{Namespace: "system", DefaultServiceAccount: "web"})
	c.reconcile()
	if got := c.storedAccounts(); !slices.Equal(got, []string{"web"}) || c.runsAs() != "web" {
		t.Fatalf("got stored ServiceAccounts %q, served as %q", got, c.runsAs())
	}
	// A different default ServiceAccount creates a new revision.
	c.identifies(identity.Options{Namespace: "system", DefaultServiceAccount: "other"})
	c.reconcile()
	if got := c.storedAccounts(); !slices.Equal(got, []string{"web", "other"}) || c.runsAs() != "other" {
		t.Fatalf("got stored ServiceAccounts %q, served as %q", got, c.runsAs())
	}
	// Without a default, the newest generation is rejected. The stored revision stays served.
	c.identifies(identity.Options{Namespace: "system"})
	c.reconcile()
	accepted := c.condition(blueprint.Accepted)
	if accepted == nil || accepted.Reason != identity.ReasonIdentityRequired || c.runsAs() != "other" {
		t.Errorf("got Accepted condition %+v, served as %q", accepted, c.runsAs())
	}
	// The name in the spec takes precedence.
	b := withFields(2, "one")
	b.Spec.ServiceAccountName = "own"
	c.update(b)
	c.reconcile()
	if got := c.runsAs(); got != "own" {
		t.Errorf("served as %q", got)
	}
}

func TestIdentity_CleanUpRunsAsTheNewestRevision(t *testing.T) {
	c := newCluster(t, withFields(1, "one"))
	c.identifies(identity.Options{Namespace: "system", DefaultServiceAccount: "web"})
	c.reconcile()
	// The stored spec is rejected now, so only deletions of instances are processed.
	c.identifies(identity.Options{Namespace: "system", DefaultServiceAccount: "other"})
	c.allow(&answers{})
	c.reconcile()
	if d, _ := c.registry.get("websites"); !d.cleansUpOnly() || c.runsAs() != "web" {
		t.Errorf("served as %q, only deletions: %t", c.runsAs(), d.cleansUpOnly())
	}
}

func TestIdentity_PlatformNeedsOnlyWatchWithServiceAccount(t *testing.T) {
	watchOnly := &answers{allowed: map[string]bool{"get": true, "list": true, "watch": true, "patch": true}}
	for account, want := range map[string]string{"web": "Compiled", "": reasonPermission} {
		b := withFields(1, "one")
		b.Spec.ServiceAccountName = account
		c := newCluster(t, b)
		c.allow(watchOnly) // neither create nor delete is allowed
		c.reconcile()
		if accepted := c.condition(blueprint.Accepted); accepted == nil || accepted.Reason != want {
			t.Errorf("as %q, the Accepted condition is %+v, want %s", account, accepted, want)
		}
	}
	b := withFields(1, "one")
	b.Spec.ServiceAccountName = "web"
	c := newCluster(t, b)
	c.allow(&answers{allowed: map[string]bool{"get": true, "list": true, "patch": true}})
	c.reconcile()
	if accepted := c.condition(blueprint.Accepted); accepted == nil || accepted.Reason != reasonPermission {
		t.Errorf("without watch, the Accepted condition is %+v", accepted)
	}
}
