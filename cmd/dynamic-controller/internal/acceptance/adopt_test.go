package acceptance

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/test/platformtest"
)

func TestIsRefusal(t *testing.T) {
	crds := apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions").GroupResource()
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"invalid schema":            {apierrors.NewInvalid(crdKind, "x", nil), true},
		"admission policy":          {apierrors.NewForbidden(crds, "x", errors.New("frozen")), true},
		"webhook":                   {apierrors.NewBadRequest("no"), true},
		"object too large":          {apierrors.NewRequestEntityTooLargeError("x"), true},
		"expired credentials":       {apierrors.NewUnauthorized("x"), false},
		"too many requests":         {apierrors.NewTooManyRequestsError("x"), false},
		"failing webhook":           {apierrors.NewInternalError(errors.New("x")), false},
		"unavailable":               {apierrors.NewServiceUnavailable("x"), false},
		"timeout of the API server": {apierrors.NewTimeoutError("x", 1), false},
		"connection refused":        {errors.New("connection refused"), false},
	} {
		if got := isRefusal(fmt.Errorf("update: %w", c.err)); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}

var crdKind = apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition").GroupKind()

// The type of a generation cannot be applied. The conditions describe the error.
func TestAdopt_FailuresOfTheType(t *testing.T) {
	refused := apierrors.NewBadRequest("no")
	for name, c := range map[string]struct {
		err      error
		isServed bool
		// accepted and established are the status and the reason of the conditions.
		accepted, established string
		// attempts is the number of attempts in two reconciles. After a refusal, the second attempt is delayed.
		attempts int
	}{
		"refused":                     {refused, false, "False RejectedByServer", "False RejectedByServer", 1},
		"refused when it is restored": {refused, true, "True Compiled", "False RejectedByServer", 2},
		"failed": {
			apierrors.NewInternalError(errors.New("etcd")), false, "Unknown TypeNotApplied", "False NotDefined", 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := generations("Wheel")[0]
			object := asObject(t, b)
			object.SetGroupVersionKind(blueprint.GroupVersionKind)
			p, _ := newTestController([]*unstructured.Unstructured{object}, nil, wheel)
			crds := crdfake.NewClientset()
			crds.PrependReactor("create", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, c.err
			})
			p.use(platformtest.NewServer(nil, object), crds)
			if c.isServed {
				add(t, p, stored(t, b, 1))
			}
			if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				p.wantAdoption(t, b, c.accepted, c.established, c.attempts == 1)
			}
			if n := countVerb(crds.Actions(), "create"); n != c.attempts {
				t.Errorf("got %d attempts, want %d", n, c.attempts)
			}
		})
	}
}

// wantAdoption adopts the Blueprint, and compares the conditions. If delayed is true, the next attempt must be delayed,
// and otherwise there must be an error.
func (p *testController) wantAdoption(
	t *testing.T, b *blueprint.Blueprint, accepted, established string, delayed bool,
) {
	t.Helper()
	d, _ := p.registry.get(b.Name)
	adopted, wait, err := p.blueprints.adoptOrWait(t.Context(), b, &d)
	if err != nil || (wait > 0) != delayed || wait > refusalInterval || (adopted.err() != nil) == delayed {
		t.Errorf("got errors %v and %v, next attempt after %s", adopted.err(), err, wait)
	}
	c, err := p.blueprints.status.conditionsFor(b, d)
	if err != nil {
		t.Fatal(err)
	}
	adopted.report(d, &c)
	got := []string{
		string(c.accepted.Status) + " " + c.accepted.Reason, string(c.established.Status) + " " + c.established.Reason,
	}
	if want := []string{accepted, established}; !slices.Equal(got, want) {
		t.Errorf("got conditions %q, want %q", got, want)
	}
}

// The type exists, because an earlier Blueprint of the same name retained it. The API server refuses to change it for a
// Blueprint that has not been accepted before.
func TestRefusal_DeletionsAreProcessed(t *testing.T) {
	b := generations("Wheel")[0]
	p, _ := newTestController([]*unstructured.Unstructured{asObject(t, b)},
		[]*apiextensionsv1.CustomResourceDefinition{madeFor(t, b, "earlier")}, wheel)
	id := instances.BlueprintID(b.Name)
	decide := func() decision {
		t.Helper()
		if err := p.decide(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		d, _ := p.registry.get(b.Name)
		return d
	}
	d := decide()
	if d.running != nil {
		t.Fatalf("got decision %+v before the type was applied", d)
	}
	d.refusal = &rejection{reasonServerRejected, "frozen"}
	if !p.registry.setRefusal(b.Name, d) || p.registry.setRefusal(b.Name, d) {
		t.Error("want one change")
	}
	if d = decide(); d.running == nil || !d.cleansUpOnly() || d.state() != StateRejected || !d.faulty {
		t.Errorf("got decision %+v after the refusal", d)
	}
	if reason, message := d.problem(nil); reason != reasonServerRejected || message != "frozen" {
		t.Errorf("got problem %s: %s", reason, message)
	}
	d.refusal = nil
	if !p.registry.setRefusal(b.Name, d) {
		t.Error("want a change when the type is applied")
	}
	d.inputs = "outdated"
	if p.registry.setRefusal(b.Name, d) {
		t.Error("an outdated decision was changed")
	}
}

// The cached Blueprint or the cached revision of a new leader is outdated, so that the spec cannot be stored. The type
// is then not changed either.
func TestAdopt_OutdatedCacheChangesNothing(t *testing.T) {
	reverted := using(3, "one", "one")
	reverted.Annotations = map[string]string{incompatibleAnnotation: "3"}
	removeField := func(c *cluster) {
		crd := c.crd().DeepCopy()
		delete(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties, "one")
		if err := c.crds.Tracker().Update(definitions, crd, ""); err != nil {
			c.t.Fatal(err)
		}
	}
	newer := func(c *cluster) { c.update(using(9, "one", "one")) }
	for name, test := range map[string]struct {
		cached *blueprint.Blueprint
		// prepare changes the API server before, and outdate after the caches are updated.
		prepare, outdate func(c *cluster)
	}{
		"a new generation": {using(3, "three", "one", "two", "three"), func(*cluster) {}, newer},
		"an earlier spec":  {reverted, func(*cluster) {}, newer},
		"the revision has changed": {reverted, func(*cluster) {}, func(c *cluster) {
			for _, r := range c.history() {
				c.server.Fails("patch", r.Name, apierrors.NewConflict(controllerRevisions.GroupResource(), r.Name, nil))
			}
		}},
		"the type of the served generation is damaged": {using(3, "missing", "one", "two"), removeField, newer},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, using(1, "one", "one"))
			c.reconcile()
			c.update(using(2, "two", "one", "two"))
			c.reconcile()
			served := c.running().Name
			c.update(test.cached)
			test.prepare(c)
			c.sync()
			test.outdate(c)
			c.crds.ClearActions()
			for _, engine := range []*platformtest.Engine{c.engine, c.instances} {
				engine.Enqueue(instances.BlueprintID("websites"))
				if _, err := engine.Run(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if n := countVerb(c.crds.Actions(), "update"); n != 0 {
				t.Errorf("the type was changed %d times", n)
			}
			stored := len(c.history())
			c.sync()
			if h := c.history(); h.newest("u").Name != served || len(h) != stored {
				t.Errorf("the spec was stored: %+v", h.newest("u"))
			}
		})
	}
}
