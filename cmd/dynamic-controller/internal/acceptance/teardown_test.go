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
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platformtest"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// ending is a Blueprint that is being deleted, on a leader that has seen that.
type ending struct {
	*testController
	server *platformtest.Server
	crds   *crdfake.Clientset
	object *unstructured.Unstructured
	id     dynamiccontroller.ObjectIdentifiers
	// pages are the instances that the API server has, as it lists them, and fails what it answers instead.
	pages [][]metav1.PartialObjectMetadata
	fails error
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

// listing lists the pages, of which each says where the next one begins.
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

// written is what was written to the definition, and to all else.
func (e *ending) written() (definition, others []string) {
	for _, action := range e.crds.Actions() {
		if verb := action.GetVerb(); verb != "get" {
			definition = append(definition, verb)
		}
	}
	e.crds.ClearActions()
	return definition, e.server.Took()
}

// serving is what the status says of that.
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

// partial is an instance, made a second before the Blueprint was deleted.
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

func madeLater(instance *metav1.PartialObjectMetadata) {
	instance.CreationTimestamp = metav1.NewTime(deletedAt.Add(time.Second))
}

func goingAlready(instance *metav1.PartialObjectMetadata) {
	instance.DeletionTimestamp = &metav1.Time{Time: deletedAt}
}

var (
	instancesOfAll = websites.GroupResource()
	errConflict    = apierrors.NewConflict(instancesOfAll, "a", errors.New("it has changed"))
	errNotFound    = apierrors.NewNotFound(instancesOfAll, "a")
	errForbidden   = apierrors.NewForbidden(instancesOfAll, "a", errors.New("not yours"))
	errDown        = apierrors.NewServiceUnavailable("etcd is down")
)

func TestAnEndWaitsForWhatThisReplicaHasYetToSee(t *testing.T) {
	for name, change := range map[string]func(*decision){
		"that there is the Blueprint":          nil,
		"that it is another of the name":       func(d *decision) { d.uid = "before" },
		"that it ends":                         func(d *decision) { d.deleting = false },
		"that its type is not served any more": func(d *decision) { d.running = cleaningUp },
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
				t.Errorf("it asks for another call %t, after %s, and wrote %q and %q", again, wait, definition, others)
			}
		})
	}
}

func TestAnEndLeavesATypeOfOthersAlone(t *testing.T) {
	for _, policy := range []blueprint.DeletionPolicy{blueprint.Retain, blueprint.Delete} {
		t.Run(string(policy), func(t *testing.T) {
			e := newEnding(t, policy, partial("a", held(instances.ChildrenFinalizer)))
			e.registry.set("websites",
				decision{uid: "u", generation: 1, deleting: true,
					validation: validation{rejection: &rejection{reasonClaimed, "x"}}})
			err := e.cleanUp(t)
			if definition, others := e.written(); err != nil || len(definition)+len(others) > 0 {
				t.Errorf("it ends with %v, and wrote %q and %q", err, definition, others)
			}
		})
	}
}

func TestWhatIsRetainedIsFreedAndLeftBehind(t *testing.T) {
	all := func() []metav1.PartialObjectMetadata {
		return []metav1.PartialObjectMetadata{
			partial("a", held(instances.ChildrenFinalizer)), partial("b", held("example.com/other")),
			partial("c", held("example.com/other", instances.ChildrenFinalizer)),
		}
	}
	freed := []string{"patch websites a", "patch websites c"}
	for name, test := range map[string]struct {
		change             func(*ending)
		wrong              string
		definition, others []string
	}{
		"all of it": {nil, "", []string{"update"}, freed},
		"on several pages": {func(e *ending) {
			e.pages = [][]metav1.PartialObjectMetadata{all()[:1], all()[1:2], all()[2:]}
		}, "", []string{"update"}, freed},
		"none of a type that is not served": {
			func(e *ending) { e.fails = errNotFound }, "", []string{"update"}, nil,
		},
		"not without a list": {func(e *ending) { e.fails = errDown }, "etcd is down", nil, nil},
		"one that is gone, and the others": {
			func(e *ending) { e.server.Fails("patch", "a", errNotFound) }, "", []string{"update"}, freed[1:],
		},
		"one that has changed, and the others": {
			func(e *ending) { e.server.Fails("patch", "a", errConflict) }, "remove the finalizer of instance shop/a", nil,
			freed[1:],
		},
		"one that may not be written, and the others": {
			func(e *ending) { e.server.Fails("patch", "a", errForbidden) }, "not yours", nil, freed[1:],
		},
		"a definition of another of the name": {func(e *ending) {
			e.crds.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
					Annotations: map[string]string{ownerUIDAnnotation: "another"},
				}}, nil
			})
		}, "", nil, freed},
		"a definition that has changed": {func(e *ending) {
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
			if told := fmt.Sprint(err); (err == nil) != (test.wrong == "") || !strings.Contains(told, test.wrong) && err != nil {
				t.Errorf("it ends with %v, want %q", err, test.wrong)
			}
			if definition, others := e.written(); !slices.Equal(definition, test.definition) ||
				!slices.Equal(others, test.others) {
				t.Errorf("written: %q and %q, want %q and %q", definition, others, test.definition, test.others)
			}
			if object, err := e.server.Tracker().Get(websites, "shop", "c"); err != nil {
				t.Error(err)
			} else if left := object.(*unstructured.Unstructured).GetFinalizers(); !slices.Contains(left, "example.com/other") ||
				slices.Contains(left, instances.ChildrenFinalizer) == slices.Contains(test.others, "patch websites c") {
				t.Errorf("c is held by %v", left)
			}
		})
	}
}

func TestAllIsDeletedInTurn(t *testing.T) {
	const status = "patch blueprints websites status"
	for name, test := range map[string]struct {
		change     func(*ending)
		wrong      string // what it ends with, if not with another call
		definition []string
		others     []string
		told       string
	}{
		"instances": {
			nil, "", nil, []string{"delete websites a", "delete websites b", status},
			"waiting for 2 instances and their children to be deleted",
		},
		"instances, of which a blocked one is named": {func(e *ending) {
			e.pages = [][]metav1.PartialObjectMetadata{{partial("a"), partial("b", func(m *metav1.PartialObjectMetadata) {
				m.Finalizers = []string{instances.ChildrenFinalizer, metav1.FinalizerDeleteDependents, "example.com/x"}
			}), partial("c")}}
		}, "", nil, []string{"delete websites a", "delete websites b", "delete websites c", status},
			"waiting for 3 instances and their children to be deleted, such as shop/b; blocked by finalizer example.com/x"},
		"nothing while it is paused": {func(e *ending) {
			e.object.SetAnnotations(map[string]string{instances.PausedAnnotation: "true"})
		}, "", nil, []string{status}, ""},
		"on several pages": {func(e *ending) {
			e.pages = [][]metav1.PartialObjectMetadata{{partial("a")}, {partial("b")}}
		}, "", nil, []string{"delete websites a", "delete websites b", status}, "waiting for 2 instances and"},
		"a terminating instance is not deleted again": {func(e *ending) {
			e.pages[0] = []metav1.PartialObjectMetadata{partial("a", goingAlready)}
		}, "", nil, []string{status}, "waiting for 1 instance and"},
		"a later instance is neither deleted nor waited for": {func(e *ending) {
			e.pages[0] = []metav1.PartialObjectMetadata{partial("a", madeLater)}
		}, "", []string{"delete"}, []string{status}, "waiting for the type to be deleted"},
		"an instance that is gone counts until the next call": {func(e *ending) {
			e.server.Fails("delete", "a", errNotFound)
		},
			"", nil, []string{"delete websites b", status}, "waiting for 2 instances"},
		"a recreated instance is deleted in the next call": {func(e *ending) { e.server.Fails("delete", "a", errConflict) },
			"", nil, []string{"delete websites b", status}, "waiting for 2 instances"},
		"a forbidden deletion is reported": {func(e *ending) { e.server.Fails("delete", "a", errForbidden) },
			"delete instance shop/a", nil, []string{"delete websites b", status}, "not yours"},
		"a failed list is reported": {func(e *ending) { e.fails = errDown },
			"list the instances", nil, []string{status}, "etcd is down"},
		"the type, when it is not served": {func(e *ending) { e.fails = errNotFound },
			"", []string{"delete"}, []string{status}, "waiting for the type to be deleted"},
		"the type, unless it has changed": {func(e *ending) {
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
			if test.wrong == "" != isRequeue(err) || !strings.Contains(fmt.Sprint(err), test.wrong) {
				t.Errorf("it ends with %v, want %q", err, test.wrong)
			}
			if definition, others := e.written(); !slices.Equal(definition, test.definition) ||
				!slices.Equal(others, test.others) {
				t.Errorf("written: %q and %q, want %q and %q", definition, others, test.definition, test.others)
			}
			if told := e.serving(t); !strings.Contains(told, test.told) {
				t.Errorf("told is %q, want %q", told, test.told)
			}
			// Whatever event comes next, all is not listed again at once.
			e.fails = errors.New("it was listed")
			if _, later := dynamiccontroller.RequeueDelay(e.cleanUp(t)); !later {
				t.Error("it looks again at once")
			}
		})
	}
}

func TestAllIsDeletedWhenTheTypeIsGoneOrAnothers(t *testing.T) {
	for name, change := range map[string]func(*apiextensionsv1.CustomResourceDefinition) error{
		"gone": func(*apiextensionsv1.CustomResourceDefinition) error { return errNotFound },
		"another's": func(crd *apiextensionsv1.CustomResourceDefinition) error {
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
				t.Errorf("it ends with %v, and wrote %q and %q", err, definition, others)
			}
		})
	}
}

func TestDeletionPolicyAppliesToBlueprintsThatWereServed(t *testing.T) {
	for name, test := range map[string]struct {
		madeBy   string // annotation of the definition in the cache
		live     string // annotation of the definition in the API server
		revision types.UID
		deletes  bool
		waits    bool
	}{
		"the type was retained":                       {},
		"the type was retained, and has revisions":    {revision: "before"},
		"the type was made for a lost Blueprint":      {madeBy: "before", live: "before", revision: "before"},
		"the type was made for it":                    {madeBy: "u", live: "u", deletes: true},
		"a spec of it is stored":                      {revision: "u", deletes: true},
		"the type was made for it, unseen":            {live: "u", waits: true},
		"the type was made for another one meanwhile": {live: "another"},
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
			if (d.running != nil) != test.deletes {
				t.Errorf("deleted instances are cleaned up: %t", d.running != nil)
			}
			err := e.cleanUp(t)
			_, others := e.written()
			switch wait, again := dynamiccontroller.RequeueDelay(err); {
			case test.waits:
				if !again || wait != soon || len(others) > 0 {
					t.Errorf("it does not wait for the cache: %v, and wrote %q", err, others)
				}
			case test.deletes != slices.Contains(others, "delete websites a"):
				t.Errorf("it ends with %v, and wrote %q", err, others)
			case !test.deletes && (err != nil || !slices.Equal(others, []string{"patch websites a"})):
				t.Errorf("it ends with %v, and wrote %q", err, others)
			}
		})
	}
}

// A revision that is not in the cache yet must not be left behind.
func TestDeletionPolicyAppliesToASpecThatWasJustStored(t *testing.T) {
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
		t.Error("it does not wait for the cache")
	}
}

func TestTheLongerAnEndTakesTheLessOftenItIsLookedAt(t *testing.T) {
	for elapsed, want := range map[time.Duration]time.Duration{
		-time.Minute: 500 * time.Millisecond, 0: 500 * time.Millisecond, time.Second: 500 * time.Millisecond,
		8 * time.Second: time.Second, 24 * time.Second: 3 * time.Second, time.Hour: 5 * time.Second,
	} {
		if got := pollInterval(elapsed); got != want {
			t.Errorf("after %v it is looked at every %v, want %v", elapsed, got, want)
		}
	}
}

// Instances in other namespaces may not even be listed.
func TestTeardown_ReadsAndWritesOnlyInTheNamespacesOfThePlatform(t *testing.T) {
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
				t.Errorf("instances were changed in the namespaces %q", changed)
			}
		})
	}
}
