package acceptance

import (
	"errors"
	"fmt"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platformtest"
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
	for name, c := range map[string]struct {
		err         error
		stored      bool // the spec is already served
		accepted    string
		established string
	}{
		"refused": {apierrors.NewBadRequest("no"), false, "False RejectedByServer", "False RejectedByServer"},
		"failed":  {apierrors.NewInternalError(errors.New("etcd")), false, "Unknown TypeNotApplied", "False NotDefined"},
		"refused when it is restored": {
			apierrors.NewBadRequest("no"), true, "True Compiled", "False RejectedByServer",
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
			server := platformtest.NewServer(nil, object)
			p.use(server, crds)
			if c.stored {
				add(t, p, stored(t, b, 1))
			}
			id := instances.BlueprintID(b.Name)
			if err := p.decide(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second attempt is delayed after a refusal
				d, _ := p.registry.get(b.Name)
				adopted, wait, err := p.blueprints.adoptOrWait(t.Context(), b, &d)
				if err != nil {
					t.Fatal(err)
				}
				if isRefused := c.accepted == "False RejectedByServer"; (wait > 0) != isRefused || wait > refusalInterval ||
					isRefused == (adopted.err() != nil) {
					t.Errorf("got error %v, next attempt after %s", adopted.err(), wait)
				}
				s, err := p.blueprints.status.conditionsFor(b, d)
				if err != nil {
					t.Fatal(err)
				}
				adopted.report(d, &s)
				for _, x := range []struct {
					got  metav1.Condition
					want string
				}{{s.accepted, c.accepted}, {s.established, c.established}} {
					if got := string(x.got.Status) + " " + x.got.Reason; got != x.want {
						t.Errorf("%s is %s, want %s", x.got.Type, got, x.want)
					}
				}
			}
			attempts := 2
			if c.accepted == "False RejectedByServer" {
				attempts = 1
			}
			if n := countVerb(crds.Actions(), "create"); n != attempts {
				t.Errorf("got %d attempts, want %d", n, attempts)
			}
		})
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
