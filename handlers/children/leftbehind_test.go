package children

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
)

var (
	errNoMethod  = apierrors.NewMethodNotSupported(configMaps.GroupResource(), "list")
	errNotServed = apierrors.NewGenericServerResponse(404, "list", configMaps.GroupResource(), "", "", 0, true)
)

// reject makes the server reject all requests with a verb for config maps.
func reject(server *controllertest.Server, verb string, err error) {
	server.PrependReactor(verb, "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, err
	})
}

func TestReconcile_DeletionContinuesWithoutChildrenThatTheServerCannotListOrDelete(t *testing.T) {
	const justNow, longAgo = time.Second, time.Minute
	for name, c := range map[string]struct {
		verb    string
		err     error
		deleted time.Duration // since the deletion of the parent
		left    []string      // nil if the deletion waits
	}{
		"lists are not supported":     {"list", errNoMethod, justNow, []string{"ConfigMap "}},
		"deletions are not supported": {"delete", errNoMethod, justNow, []string{"ConfigMap other/a"}},
		"the type is not served":      {"list", errNotServed, longAgo, []string{"ConfigMap "}},
		"deletions are not served":    {"delete", errNotServed, longAgo, []string{"ConfigMap other/a"}},
		"the type is not served yet":  {"list", errNotServed, justNow, nil},
		"lists are forbidden": {
			"list", apierrors.NewForbidden(configMaps.GroupResource(), "", errors.New("test")), longAgo, nil,
		},
		"lists fail": {"list", apierrors.NewInternalError(errors.New("test")), longAgo, nil},
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(newWidget())
			reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
			if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newRemoteConfigMap("a"))); err != nil {
				t.Fatal(err)
			}
			deleted := metav1.NewTime(time.Now().Add(-c.deleted))
			parent.SetDeletionTimestamp(&deleted)
			reject(server, c.verb, c.err)
			var left []string
			_, err := reconciler.Reconcile(t.Context(), first, parent, Desired{
				LeftBehind: func(_ context.Context, all []LeftBehind) error {
					for _, l := range all {
						if left = append(left, l.Kind.String()+" "+l.NamespacedKey); !errors.Is(l.Err, c.err) || l.GVR != configMaps {
							t.Errorf("got %+v", l)
						}
					}
					if !slices.Contains(getParent(t, server).GetFinalizers(), reconciler.names.Finalizer()) {
						t.Error("the finalizer was removed before the call")
					}
					return nil
				},
			})
			if (err == nil) != (c.left != nil) || !slices.Equal(left, c.left) {
				t.Errorf("got %q, %v; want %q", left, err, c.left)
			}
			finalizers := getParent(t, server).GetFinalizers()
			if kept := slices.Contains(finalizers, reconciler.names.Finalizer()); kept != (c.left == nil) {
				t.Errorf("the parent has the finalizer: %t", kept)
			}
		})
	}
}

func TestReconcile_FinalizerStaysUntilWhatIsLeftBehindIsReported(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newRemoteConfigMap("a"))); err != nil {
		t.Fatal(err)
	}
	now, failure := metav1.Now(), errors.New("test")
	parent.SetDeletionTimestamp(&now)
	reject(server, "list", errNoMethod)
	_, err := reconciler.Reconcile(t.Context(), first, parent, Desired{
		LeftBehind: func(context.Context, []LeftBehind) error { return failure },
	})
	if !errors.Is(err, failure) || !slices.Contains(getParent(t, server).GetFinalizers(), reconciler.names.Finalizer()) {
		t.Errorf("got %v, finalizers %q", err, getParent(t, server).GetFinalizers())
	}
	if _, err := reconciler.Reconcile(t.Context(), first, parent, Desired{}); err != nil ||
		len(getParent(t, server).GetFinalizers()) > 0 {
		t.Errorf("without LeftBehind: got %v, finalizers %q", err, getParent(t, server).GetFinalizers())
	}
}

// A child that cannot be deleted does not delay the children in earlier stages.
func TestReconcile_DeletesEarlierStagesOfChildrenThatAreLeftBehind(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	route := newObject("example.com/v1", "Widget", "", "route")
	if _, err := reconciler.Reconcile(t.Context(), first, parent, Desired{Stages: [][]Child{
		Stage(newConfigMap("database", "x")), Stage(route), Stage(newConfigMap("app", "x")),
	}}); err != nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	parent.SetDeletionTimestamp(&now)
	reject(server, "delete", errNoMethod)
	server.TakeWrites()
	_, err := reconciler.Reconcile(t.Context(), first, parent, Desired{})
	if pending := pendingOf(t, err); !slices.Equal(pending, []string{"route!", "database"}) {
		t.Errorf("pending: %q, %v", pending, err)
	}
	if writes := server.TakeWrites(); !slices.Equal(writes, []string{"delete widgets route"}) {
		t.Errorf("wrote %q", writes)
	}
}

func TestReconcile_PruningSkipsKindsThatCannotBeListed(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	other := newObject("example.com/v1", "Widget", "", "other")
	if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newRemoteConfigMap("a"), other)); err != nil {
		t.Fatal(err)
	}
	reject(server, "list", errNoMethod)
	server.TakeWrites()
	_, err := reconciler.Reconcile(t.Context(), first, parent, Desired{})
	failUnlessRequeued(t, err)
	if writes := server.TakeWrites(); !slices.Contains(writes, "delete widgets other") {
		t.Errorf("wrote %q", writes)
	}
	recorded := RecordedKinds(getParent(t, server), "platform.example.com")
	if !slices.ContainsFunc(recorded, func(k RecordedKind) bool { return k.GroupKind == configMapKind.GroupKind }) {
		t.Errorf("the inventory is %v", recorded)
	}
}

// The API server rejects a list of a type with the plural watch in all namespaces with an internal error.
func TestReconcile_DeletionContinuesWithoutTypesWithAmbiguousPaths(t *testing.T) {
	server := newFakeServer(newWidget())
	watches := schema.GroupVersionKind{Group: "parts.example.com", Version: "v1", Kind: "Watch"}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.AddSpecific(watches, watches.GroupVersion().WithResource("watch"), watches.GroupVersion().WithResource("watch"),
		meta.RESTScopeNamespace)
	reconciler, err := New(Config{
		Client: server, Mapper: mapper, Name: "platform.example.com",
		Kinds: []Kind{{GroupKind: watches.GroupKind(), CrossNamespace: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	parent, now := newWidget(), metav1.Now()
	parent.SetFinalizers([]string{reconciler.names.Finalizer()})
	parent.SetAnnotations(map[string]string{reconciler.names.Inventory(): "Watch.parts.example.com=v1/watch:0@other"})
	if _, err := server.Resource(widgets).Namespace("default").
		Update(t.Context(), parent, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	parent.SetDeletionTimestamp(&now)
	var left []LeftBehind
	_, err = reconciler.Reconcile(t.Context(), first, parent, Desired{
		LeftBehind: func(_ context.Context, all []LeftBehind) error { left = all; return nil },
	})
	if err != nil || len(left) != 1 || !errors.Is(left[0].Err, decide.ErrMisrouted) ||
		left[0].Kind != watches.GroupKind() {
		t.Errorf("got %+v, %v", left, err)
	}
	if finalizers := getParent(t, server).GetFinalizers(); len(finalizers) > 0 {
		t.Errorf("got finalizers %q", finalizers)
	}
}
