package acceptance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// ending is a Blueprint that is being deleted, on a leader that has observed the deletion.
type ending struct {
	*testController
	server *platformtest.Server
	crds   *crdfake.Clientset
	object *unstructured.Unstructured
	id     dynamiccontroller.ObjectIdentifiers
	// pages are the instances in the API server, by page of the list. If fails is set, lists return that error.
	pages [][]metav1.PartialObjectMetadata
	fails error
	// listed is called before each list, if it is set.
	listed func()
}

var deletedAt = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func newEnding(t *testing.T, policy blueprint.DeletionPolicy, there ...metav1.PartialObjectMetadata) *ending {
	t.Helper()
	b := &blueprint.Blueprint{Spec: making("Wheel")}
	b.Name, b.UID, b.Generation, b.Spec.DeletionPolicy = "websites", "u", 1, policy
	b.DeletionTimestamp, b.Finalizers = &metav1.Time{Time: deletedAt}, []string{finalizer}
	crd := madeFor(t, b, "u")
	object := asObject(t, b)
	object.SetGroupVersionKind(blueprint.GroupVersionKind)
	p, _ := newTestController([]*unstructured.Unstructured{object}, []*apiextensionsv1.CustomResourceDefinition{crd})
	e := &ending{testController: p, object: object, id: instances.BlueprintID(b.Name),
		pages: [][]metav1.PartialObjectMetadata{there}}
	e.server = platformtest.NewServer(nil, object)
	for _, instance := range there {
		object := &unstructured.Unstructured{Object: map[string]any{}}
		object.SetGroupVersionKind(website)
		object.SetNamespace(instance.Namespace)
		object.SetName(instance.Name)
		object.SetFinalizers(instance.Finalizers)
		if err := e.server.Tracker().Add(object); err != nil {
			t.Fatal(err)
		}
	}
	e.crds = crdfake.NewClientset(crd)
	e.config.Metadata = listing{e: e}
	e.use(e.server, e.crds)
	e.registry.set(b.Name,
		decision{uid: "u", generation: 1, deleting: true, served: true, validation: validation{gvr: websites}})
	return e
}

// listing returns the pages, with a continue token for each next page.
type listing struct {
	metadata.Getter
	e         *ending
	namespace string
}

func (l listing) Resource(schema.GroupVersionResource) metadata.Getter { return l }

func (l listing) Namespace(namespace string) metadata.ResourceInterface {
	return listing{e: l.e, namespace: namespace}
}

func (l listing) List(_ context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	n := 0
	_, _ = fmt.Sscan(options.Continue, &n)
	if l.e.listed != nil {
		l.e.listed()
	}
	if l.e.fails != nil {
		return nil, l.e.fails
	}
	list := &metav1.PartialObjectMetadataList{}
	for _, instance := range l.e.pages[n] {
		if l.namespace == "" || l.namespace == instance.Namespace {
			list.Items = append(list.Items, instance)
		}
	}
	if n+1 < len(l.e.pages) {
		list.Continue = fmt.Sprint(n + 1)
	}
	return list, nil
}

func (e *ending) cleanUp(t *testing.T) error {
	return e.blueprints.teardown.cleanUp(t.Context(), e.id, e.object)
}

// written returns the verbs of the writes to the CustomResourceDefinition, and the other writes.
func (e *ending) written() (definition, others []string) {
	for _, action := range e.crds.Actions() {
		if verb := action.GetVerb(); verb != "get" {
			definition = append(definition, verb)
		}
	}
	e.crds.ClearActions()
	return definition, e.server.Took()
}

// serving returns the message of the Serving condition.
func (e *ending) serving(t *testing.T) string {
	t.Helper()
	object, err := e.server.Tracker().Get(blueprints, "", e.id.Name())
	if err != nil {
		t.Fatal(err)
	}
	if c := instances.ConditionOf(object.(*unstructured.Unstructured), blueprint.Serving); c != nil {
		return c.Message
	}
	return ""
}

// partial returns an instance that was created a second before the Blueprint was deleted.
func partial(name string, changes ...func(*metav1.PartialObjectMetadata)) metav1.PartialObjectMetadata {
	instance := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(deletedAt.Add(-time.Second)),
	}}
	for _, change := range changes {
		change(&instance)
	}
	return instance
}

func held(by ...string) func(*metav1.PartialObjectMetadata) {
	return func(instance *metav1.PartialObjectMetadata) { instance.Finalizers = by }
}

func createdLater(instance *metav1.PartialObjectMetadata) {
	instance.CreationTimestamp = metav1.NewTime(deletedAt.Add(time.Second))
}

func terminating(instance *metav1.PartialObjectMetadata) {
	instance.DeletionTimestamp = &metav1.Time{Time: deletedAt}
}

var (
	instancesOfAll = websites.GroupResource()
	errConflict    = apierrors.NewConflict(instancesOfAll, "a", errors.New("it has changed"))
	errNotFound    = apierrors.NewNotFound(instancesOfAll, "a")
	errForbidden   = apierrors.NewForbidden(instancesOfAll, "a", errors.New("not yours"))
	errDown        = apierrors.NewServiceUnavailable("etcd is down")
)

func TestTeardown_WaitsForTheDefinitionReconcile(t *testing.T) {
	for name, change := range map[string]func(*decision){
		"Blueprint unknown":          nil,
		"Blueprint with another UID": func(d *decision) { d.uid = "before" },
		"deletion not observed":      func(d *decision) { d.deleting = false },
		"type still served":          func(d *decision) { d.running = reconciling },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnding(t, blueprint.Retain, partial("a", held(instances.ChildrenFinalizer)))
			d, _ := e.registry.get("websites")
			if change == nil {
				e.registry.forget("websites")
			} else {
				change(&d)
				e.registry.set("websites", d)
			}
			wait, again := dynamiccontroller.RequeueDelay(e.cleanUp(t))
			if definition, others := e.written(); !again || wait != soon || len(definition)+len(others) > 0 {
				t.Errorf("got requeue %t after %s, CRD writes %q and other writes %q", again, wait, definition, others)
			}
		})
	}
}

func TestTeardown_LeavesTheTypeOfAnotherBlueprint(t *testing.T) {
	for _, policy := range []blueprint.DeletionPolicy{blueprint.Retain, blueprint.Delete} {
		t.Run(string(policy), func(t *testing.T) {
			e := newEnding(t, policy, partial("a", held(instances.ChildrenFinalizer)))
			e.registry.set("websites",
				decision{uid: "u", generation: 1, deleting: true,
					validation: validation{rejection: &rejection{reasonClaimed, "x"}}})
			err := e.cleanUp(t)
			if definition, others := e.written(); err != nil || len(definition)+len(others) > 0 {
				t.Errorf("got error %v, CRD writes %q and other writes %q", err, definition, others)
			}
		})
	}
}

func TestTeardown_RetainReleasesInstancesAndType(t *testing.T) {
	all := func() []metav1.PartialObjectMetadata {
		return []metav1.PartialObjectMetadata{
			partial("a", held(instances.ChildrenFinalizer)), partial("b", held("example.com/other")),
			partial("c", held("example.com/other", instances.ChildrenFinalizer)),
		}
	}
	freed := []string{"patch websites a", "patch websites c"}
	for name, test := range map[string]struct {
		change             func(*ending)
		wantErr            string
		definition, others []string
	}{
		"all instances": {nil, "", []string{"update"}, freed},
		"several pages": {func(e *ending) {
			e.pages = [][]metav1.PartialObjectMetadata{all()[:1], all()[1:2], all()[2:]}
		}, "", []string{"update"}, freed},
		"type not served": {
			func(e *ending) { e.fails = errNotFound }, "", []string{"update"}, nil,
		},
		"list failed": {func(e *ending) { e.fails = errDown }, "etcd is down", nil, nil},
		"instance deleted meanwhile": {
			func(e *ending) { e.server.Fails("patch", "a", errNotFound) }, "", []string{"update"}, freed[1:],
		},
		"terminating instance without the finalizer": {
			func(e *ending) { terminating(&e.pages[0][1]) }, "", []string{"update"}, freed,
		},
		"terminating instance created after the Blueprint was deleted": {
			func(e *ending) {
				terminating(&e.pages[0][0])
				e.pages[0][0].CreationTimestamp = metav1.NewTime(deletedAt.Add(2 * stopPeriod))
			}, "", []string{"update"}, freed,
		},
		"instance changed meanwhile": {
			func(e *ending) { e.server.Fails("patch", "a", errConflict) }, "remove the finalizer from instance shop/a", nil,
			freed[1:],
		},
		"write forbidden": {
			func(e *ending) { e.server.Fails("patch", "a", errForbidden) }, "not yours", nil, freed[1:],
		},
		"CRD of another Blueprint": {func(e *ending) {
			e.crds.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
					Annotations: map[string]string{ownerUIDAnnotation: "another"},
				}}, nil
			})
		}, "", nil, freed},
		"CRD changed meanwhile": {func(e *ending) {
			e.crds.PrependReactor("update", "*",
				func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errConflict })
		}, "release the CustomResourceDefinition websites.shop.example.com", []string{"update"}, freed},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnding(t, blueprint.Retain, all()...)
			if test.change != nil {
				test.change(e)
			}
			err := e.cleanUp(t)
			if message := fmt.Sprint(err); (err == nil) != (test.wantErr == "") ||
				!strings.Contains(message, test.wantErr) && err != nil {
				t.Errorf("got error %v, want %q", err, test.wantErr)
			}
			if definition, others := e.written(); !slices.Equal(definition, test.definition) ||
				!slices.Equal(others, test.others) {
				t.Errorf("got CRD writes %q and other writes %q, want %q and %q", definition, others, test.definition, test.others)
			}
			if object, err := e.server.Tracker().Get(websites, "shop", "c"); err != nil {
				t.Error(err)
			} else if left := object.(*unstructured.Unstructured).GetFinalizers(); !slices.Contains(left, "example.com/other") ||
				slices.Contains(left, instances.ChildrenFinalizer) == slices.Contains(test.others, "patch websites c") {
				t.Errorf("got finalizers %v of instance c", left)
			}
		})
	}
}

// The platform's finalizer is removed from no instance before the requested deletions have been completed.
func TestTeardown_RetainCompletesRequestedDeletions(t *testing.T) {
	deleting := func(name string, at time.Duration, annotations map[string]string) metav1.PartialObjectMetadata {
		return partial(name, held(instances.ChildrenFinalizer), func(m *metav1.PartialObjectMetadata) {
			m.DeletionTimestamp, m.Annotations = &metav1.Time{Time: deletedAt.Add(at)}, annotations
		})
	}
	const status = "patch blueprints websites status"
	kept := partial("kept", held(instances.ChildrenFinalizer))
	for name, test := range map[string]struct {
		there   []metav1.PartialObjectMetadata
		message string
	}{
		"one": {[]metav1.PartialObjectMetadata{kept, deleting("a", 0, nil)},
			"waiting for the requested deletion of 1 instance, for example shop/a; its Ready condition contains the reason"},
		"the oldest is named": {
			[]metav1.PartialObjectMetadata{deleting("a", 0, nil), deleting("b", -time.Hour, nil), deleting("c", time.Hour, nil)},
			"waiting for the requested deletion of 3 instances, for example shop/b;",
		},
		"paused": {
			[]metav1.PartialObjectMetadata{kept, deleting("a", 0, map[string]string{instances.PausedAnnotation: "true"})},
			"for example shop/a, which is paused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnding(t, blueprint.Retain, test.there...)
			if err := e.cleanUp(t); !isRequeue(err) {
				t.Errorf("got error %v, want a requeue", err)
			}
			if definition, others := e.written(); len(definition) > 0 || !slices.Equal(others, []string{status}) {
				t.Errorf("got CRD writes %q and other writes %q", definition, others)
			}
			if message := e.serving(t); !strings.Contains(message, test.message) {
				t.Errorf("got Serving message %q, want %q", message, test.message)
			}
			e.fails = errors.New("the instances were listed")
			if err := e.cleanUp(t); !isRequeue(err) {
				t.Errorf("got error %v: the instances are listed again immediately", err)
			}
		})
	}
}

// An instance that is deleted between the two lists keeps the finalizer.
func TestTeardown_RetainReleasesNoInstanceThatIsBeingDeleted(t *testing.T) {
	e := newEnding(t, blueprint.Retain, partial("a", held(instances.ChildrenFinalizer)),
		partial("b", held(instances.ChildrenFinalizer)))
	lists := 0
	e.listed = func() {
		if lists++; lists == 2 {
			terminating(&e.pages[0][0])
		}
	}
	err := e.cleanUp(t)
	definition, others := e.written()
	if !isRequeue(err) || len(definition) > 0 || !slices.Equal(others, []string{"patch websites b"}) {
		t.Errorf("got error %v, CRD writes %q and other writes %q", err, definition, others)
	}
}

func TestTeardown_DeletesInstancesThenType(t *testing.T) {
	const status = "patch blueprints websites status"
	for name, test := range map[string]struct {
		change     func(*ending)
		wantErr    string // "" for a requeue
		definition []string
		others     []string
		message    string
	}{
		"instances remain": {
			nil, "", nil, []string{"delete websites a", "delete websites b", status},
			"waiting for 2 instances to be deleted",
		},
		"blocked instance": {func(e *ending) {
			e.pages = [][]metav1.PartialObjectMetadata{{partial("a"), partial("b", func(m *metav1.PartialObjectMetadata) {
				m.Finalizers = []string{instances.ChildrenFinalizer, metav1.FinalizerDeleteDependents, "example.com/x"}
			}), partial("c")}}
		}, "", nil, []string{"delete websites a", "delete websites b", "delete websites c", status},
			"waiting for 3 instances to be deleted, for example shop/b; blocked by finalizer example.com/x"},
		"paused": {func(e *ending) {
			e.object.SetAnnotations(map[string]string{instances.PausedAnnotation: "true"})
		}, "", nil, []string{status}, ""},
		"several pages": {func(e *ending) {
			e.pages = [][]metav1.PartialObjectMetadata{{partial("a")}, {partial("b")}}
		}, "", nil, []string{"delete websites a", "delete websites b", status}, "waiting for 2 instances to be deleted"},
		"terminating instance": {func(e *ending) {
			e.pages[0] = []metav1.PartialObjectMetadata{partial("a", terminating)}
		}, "", nil, []string{status}, "waiting for 1 instance to be deleted"},
		"instance created later": {func(e *ending) {
			e.pages[0] = []metav1.PartialObjectMetadata{partial("a", createdLater)}
		}, "", []string{"delete"}, []string{status}, "waiting for the type to be deleted"},
		"instance deleted meanwhile": {func(e *ending) {
			e.server.Fails("delete", "a", errNotFound)
		},
			"", nil, []string{"delete websites b", status}, "waiting for 2 instances"},
		"instance recreated meanwhile": {func(e *ending) { e.server.Fails("delete", "a", errConflict) },
			"", nil, []string{"delete websites b", status}, "waiting for 2 instances"},
		"deletion forbidden": {func(e *ending) { e.server.Fails("delete", "a", errForbidden) },
			"delete instance shop/a", nil, []string{"delete websites b", status}, "not yours"},
		"list failed": {func(e *ending) { e.fails = errDown },
			"list the instances", nil, []string{status}, "etcd is down"},
		"type not served": {func(e *ending) { e.fails = errNotFound },
			"", []string{"delete"}, []string{status}, "waiting for the type to be deleted"},
		"type changed meanwhile": {func(e *ending) {
			e.pages[0] = nil
			e.crds.PrependReactor("delete", "*",
				func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errConflict })
		}, "delete the CustomResourceDefinition websites.shop.example.com", []string{"delete"}, []string{status},
			"it has changed"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnding(t, blueprint.Delete, partial("a"), partial("b"))
			if test.change != nil {
				test.change(e)
			}
			err := e.cleanUp(t)
			if test.wantErr == "" != isRequeue(err) || !strings.Contains(fmt.Sprint(err), test.wantErr) {
				t.Errorf("got error %v, want %q", err, test.wantErr)
			}
			if definition, others := e.written(); !slices.Equal(definition, test.definition) ||
				!slices.Equal(others, test.others) {
				t.Errorf("got CRD writes %q and other writes %q, want %q and %q", definition, others, test.definition, test.others)
			}
			if message := e.serving(t); !strings.Contains(message, test.message) {
				t.Errorf("got Serving message %q, want %q", message, test.message)
			}
			// The next event does not cause another list immediately.
			e.fails = errors.New("the instances were listed")
			if _, later := dynamiccontroller.RequeueDelay(e.cleanUp(t)); !later {
				t.Error("the instances are listed again immediately")
			}
		})
	}
}

func TestTeardown_CompletesIfTheTypeIsNotOwned(t *testing.T) {
	for name, change := range map[string]func(*apiextensionsv1.CustomResourceDefinition) error{
		"deleted": func(*apiextensionsv1.CustomResourceDefinition) error { return errNotFound },
		"of another Blueprint": func(crd *apiextensionsv1.CustomResourceDefinition) error {
			crd.Annotations[ownerUIDAnnotation] = "another"
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnding(t, blueprint.Delete)
			e.crds.PrependReactor("get", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
				object, err := e.crds.Tracker().Get(action.GetResource(), "", "websites.shop.example.com")
				if err != nil {
					return true, nil, err
				}
				crd := object.(*apiextensionsv1.CustomResourceDefinition)
				return true, crd, change(crd)
			})
			err := e.cleanUp(t)
			if definition, others := e.written(); err != nil || len(definition)+len(others) > 0 {
				t.Errorf("got error %v, CRD writes %q and other writes %q", err, definition, others)
			}
		})
	}
}

func TestTeardown_DeletesOnlyAfterServing(t *testing.T) {
	for name, test := range map[string]struct {
		madeBy   string // UID annotation on the CustomResourceDefinition in the cache
		live     string // UID annotation on the CustomResourceDefinition in the API server
		revision types.UID
		deletes  bool
		waits    bool
	}{
		"type retained":                                   {},
		"type and revisions retained":                     {revision: "before"},
		"type created for a lost Blueprint":               {madeBy: "before", live: "before", revision: "before"},
		"type created for this Blueprint":                 {madeBy: "u", live: "u", deletes: true},
		"spec stored":                                     {revision: "u", deletes: true},
		"type created for this Blueprint, not cached yet": {live: "u", waits: true},
		"type created for another Blueprint meanwhile":    {live: "another"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnding(t, blueprint.Delete, partial("a", held(instances.ChildrenFinalizer)))
			b := generations("Missing")[0]
			annotated := func(uid string) *apiextensionsv1.CustomResourceDefinition {
				crd := madeFor(t, b, uid)
				if uid == "" {
					delete(crd.Annotations, ownerUIDAnnotation)
				}
				return crd
			}
			_ = e.engine.Secondary.Update(annotated(test.madeBy))
			e.crds = crdfake.NewClientset(annotated(test.live))
			e.use(nil, e.crds)
			if test.revision != "" {
				b.UID = test.revision
				add(t, e.testController, stored(t, b, 1))
			}
			e.forgetDecisions()
			if err := e.decide(t.Context(), e.id); err != nil {
				t.Fatal(err)
			}
			d, _ := e.registry.get("websites")
			if d.running == nil || !d.cleansUpOnly() {
				t.Errorf("got revision %+v, want one that completes deletions", d.running)
			}
			err := e.cleanUp(t)
			_, others := e.written()
			switch wait, again := dynamiccontroller.RequeueDelay(err); {
			case test.waits:
				if !again || wait != soon || len(others) > 0 {
					t.Errorf("got error %v and writes %q, want to wait for the cache", err, others)
				}
			case test.deletes != slices.Contains(others, "delete websites a"):
				t.Errorf("got error %v and writes %q", err, others)
			case !test.deletes && (err != nil || !slices.Equal(others, []string{"patch websites a"})):
				t.Errorf("got error %v and writes %q", err, others)
			}
		})
	}
}

// A revision that is not cached yet must be deleted, too.
func TestTeardown_WaitsForARevisionThatIsNotCached(t *testing.T) {
	e := newEnding(t, blueprint.Delete)
	e.crds = crdfake.NewClientset()
	e.use(nil, e.crds)
	_ = e.engine.Secondary.Delete(madeFor(t, generations("Wheel")[0], "u"))
	object, err := newRevision("system", "websites-1", generations("Wheel")[0], 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.server.Tracker().Add(object); err != nil {
		t.Fatal(err)
	}
	e.registry.set("websites", decision{uid: "u", generation: 1, deleting: true, validation: validation{gvr: websites}})
	if wait, again := dynamiccontroller.RequeueDelay(e.cleanUp(t)); !again || wait != soon {
		t.Error("the teardown does not wait for the cache")
	}
}

func TestPollInterval_Grows(t *testing.T) {
	for elapsed, want := range map[time.Duration]time.Duration{
		-time.Minute: 500 * time.Millisecond, 0: 500 * time.Millisecond, time.Second: 500 * time.Millisecond,
		8 * time.Second: time.Second, 24 * time.Second: 3 * time.Second, time.Hour: 5 * time.Second,
	} {
		if got := pollInterval(elapsed); got != want {
			t.Errorf("after %v: got interval %v, want %v", elapsed, got, want)
		}
	}
}

// The platform may not even be permitted to list instances in other namespaces.
func TestTeardown_IsLimitedToNamespaces(t *testing.T) {
	in := func(namespace string) func(*metav1.PartialObjectMetadata) {
		return func(instance *metav1.PartialObjectMetadata) { instance.Namespace = namespace }
	}
	for policy, want := range map[blueprint.DeletionPolicy]string{
		blueprint.Delete: "delete", blueprint.Retain: "patch",
	} {
		t.Run(string(policy), func(t *testing.T) {
			e := newEnding(t, policy, partial("a", held(instances.ChildrenFinalizer)),
				partial("b", in("team"), held(instances.ChildrenFinalizer)),
				partial("c", in("other"), held(instances.ChildrenFinalizer)))
			e.config.Namespaces = []string{"shop", "team"}
			e.use(e.server, e.crds)
			if err := e.cleanUp(t); err != nil && !isRequeue(err) {
				t.Fatal(err)
			}
			var changed []string
			for _, action := range e.server.Actions() {
				if action.GetResource() == websites && action.GetVerb() == want {
					changed = append(changed, action.GetNamespace())
				}
			}
			if !slices.Equal(changed, []string{"shop", "team"}) {
				t.Errorf("got changed instances in namespaces %q", changed)
			}
		})
	}
}
