package acceptance

import (
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/events"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// An administrator can stop serving all versions of an existing type. Its instances can then not be listed.
func TestTeardown_ReportsInstancesOfATypeWithoutServedVersions(t *testing.T) {
	for _, isServed := range []bool{true, false} {
		b := generations("Wheel")[0]
		crd := madeFor(t, b, "u")
		crd.Annotations = map[string]string{allowedAnnotation: "websites"}
		crd.Spec.Versions[0].Served = isServed
		b.Spec.Type = blueprint.Type{CRD: crd.Name}
		b.DeletionTimestamp, b.Finalizers = &metav1.Time{Time: deletedAt}, []string{finalizer}
		object := asObject(t, b)
		object.SetGroupVersionKind(blueprint.GroupVersionKind)
		p, _ := newTestController([]*unstructured.Unstructured{object},
			[]*apiextensionsv1.CustomResourceDefinition{crd}, wheel)
		add(t, p, stored(t, b, 1))
		e := &ending{testController: p, object: object, id: instances.BlueprintID(b.Name)}
		e.pages = [][]metav1.PartialObjectMetadata{nil}
		e.config.Metadata, e.server = listing{e: e}, platformtest.NewServer(nil, object)
		e.use(e.server, crdfake.NewClientset(crd))
		if err := e.decide(t.Context(), e.id); err != nil {
			t.Fatal(err)
		}
		if err := e.cleanUp(t); err != nil {
			t.Error(err)
		}
		if message := e.serving(t); isServed == strings.HasPrefix(message, "the deletion continues without the instances") {
			t.Errorf("served %t: got message %q", isServed, message)
		}
	}
}

// establish establishes the type of the Blueprint.
func (e *ending) establish(t *testing.T) {
	t.Helper()
	definitions := e.crds.ApiextensionsV1().CustomResourceDefinitions()
	crd, err := definitions.Get(t.Context(), "websites.shop.example.com", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	crd.Status.Conditions = append(crd.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue,
	})
	if _, err := definitions.Update(t.Context(), crd, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.crds.ClearActions()
}

func TestTeardown_ContinuesWithoutInstancesThatCannotBeListed(t *testing.T) {
	const status = "patch blueprints websites status"
	noMethod := apierrors.NewMethodNotSupported(websites.GroupResource(), "list")
	for name, test := range map[string]struct {
		policy      blueprint.DeletionPolicy
		fails       error
		established bool
		justNow     bool // whether the Blueprint has just been deleted
		waits       bool
		definition  []string // writes to the CustomResourceDefinition
		others      []string
	}{
		"lists are not supported, Retain": {
			blueprint.Retain, noMethod, true, true, false, []string{"update"}, []string{status},
		},
		"lists are not supported, Delete": {
			blueprint.Delete, noMethod, true, true, false, []string{"delete"}, []string{status},
		},
		"the type is not served, Retain": {
			blueprint.Retain, errNotFound, true, false, false, []string{"update"}, []string{status},
		},
		"the type is not served, Delete": {
			blueprint.Delete, errNotFound, true, false, false, []string{"delete"}, []string{status},
		},
		"the type is not served yet": {blueprint.Retain, errNotFound, true, true, true, nil, nil},
		"the type does not exist":    {blueprint.Retain, errNotFound, false, true, false, []string{"update"}, nil},
		"lists are forbidden":        {blueprint.Retain, errForbidden, true, false, true, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnding(t, test.policy, partial("a", held(instances.ChildrenFinalizer)))
			e.fails = test.fails
			var recorded []events.Event
			e.config.Record = func(event events.Event) { recorded = append(recorded, event) }
			e.use(nil, nil)
			if test.justNow {
				now := metav1.NewTime(time.Now())
				e.object.SetDeletionTimestamp(&now)
			}
			if test.established {
				e.establish(t)
			}
			err := e.cleanUp(t)
			if (err != nil) != test.waits {
				t.Errorf("got error %v", err)
			}
			definition, others := e.written()
			if !slices.Equal(definition, test.definition) || !slices.Equal(others, test.others) {
				t.Errorf("got CRD writes %q and other writes %q", definition, others)
			}
			reports := len(test.others) > 0
			if message := e.serving(t); reports != strings.HasPrefix(message, "the deletion continues without the instances "+
				"of websites.shop.example.com, which can still exist") {
				t.Errorf("got message %q", message)
			}
			if isRecorded := slices.ContainsFunc(recorded, func(event events.Event) bool {
				return event.Reason == events.InstancesLeftBehind
			}); isRecorded != reports {
				t.Errorf("recorded %+v", recorded)
			}
		})
	}
}

// The permissions of the platform cannot be reviewed. The deletion does not need them.
func TestTeardown_ContinuesIfTheBlueprintCannotBeValidated(t *testing.T) {
	for _, policy := range []blueprint.DeletionPolicy{blueprint.Retain, blueprint.Delete} {
		e := newEnding(t, policy)
		e.mapper.Add(wheel, meta.RESTScopeNamespace)
		e.forgetDecisions()
		e.allow(&answers{err: apierrors.NewForbidden(schema.GroupResource{}, "x", nil)})
		if err := e.decide(t.Context(), e.id); err != nil {
			t.Errorf("%s: %v", policy, err)
		}
		d, _ := e.registry.get("websites")
		if d.undecided != nil || d.gvr != websites || !d.deleting || d.deletes(&blueprint.Blueprint{
			Spec: blueprint.Spec{DeletionPolicy: policy},
		}) != (policy == blueprint.Delete) {
			t.Errorf("%s: got decision %+v", policy, d)
		}
		if err := e.cleanUp(t); isRequeue(err) == (policy == blueprint.Retain) {
			t.Errorf("%s: got error %v", policy, err)
		}
		definition, _ := e.written()
		want := map[blueprint.DeletionPolicy]string{blueprint.Retain: "update", blueprint.Delete: "delete"}[policy]
		if !slices.Contains(definition, want) {
			t.Errorf("%s: got writes %q", policy, definition)
		}
	}
}
