package acceptance

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

func typesUID(s string) types.UID { return types.UID(s) }

// answers is a Reviewer that allows some verbs and counts the reviews of each verb.
type answers struct {
	mu         sync.Mutex
	allowed    map[string]bool
	asked      map[string]int
	namespaces []string
	err        error
}

func (a *answers) Create(_ context.Context, review *authorizationv1.SelfSubjectAccessReview,
	_ metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	verb := review.Spec.ResourceAttributes.Verb
	if a.asked == nil {
		a.asked = map[string]int{}
	}
	a.asked[verb]++
	a.namespaces = append(a.namespaces, review.Spec.ResourceAttributes.Namespace)
	review.Status.Allowed = a.allowed[verb]
	return review, a.err
}

func widgets(verbs ...string) (all []permission) {
	for _, verb := range verbs {
		all = append(all,
			permission{verb: verb, resource: schema.GroupResource{Group: "example.com", Resource: "widgets"},
				path: "spec.resources[0].template"})
	}
	return all
}

func TestAccessReviews_CachesGrantedPermissions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &answers{allowed: map[string]bool{"get": true}}
		r := newAccessReviews(api)
		for range 2 {
			missing, err := r.missing(t.Context(), widgets("get", "create"))
			if err != nil || !reflect.DeepEqual(missing, widgets("create")) {
				t.Errorf("missing permissions: %v, %v", missing, err)
			}
		}
		if api.asked["get"] != 1 || api.asked["create"] != 2 {
			t.Errorf("reviews per verb: %v", api.asked)
		}
		api.allowed = map[string]bool{"create": true}
		time.Sleep(grantedFor + time.Second)
		missing, err := r.missing(t.Context(), widgets("get", "create"))
		if err != nil || !reflect.DeepEqual(missing, widgets("get")) {
			t.Errorf("missing permissions: %v, %v", missing, err)
		}
	})
}

func TestAccessReviews_DoesNotCacheErrors(t *testing.T) {
	failure := errors.New("no answer")
	r := newAccessReviews(&answers{err: failure})
	if _, err := r.missing(t.Context(), widgets("get")); !errors.Is(err, failure) {
		t.Errorf("got error %v, want %v", err, failure)
	}
	if len(r.granted.Keys()) > 0 {
		t.Errorf("cached permissions after an error: %v", r.granted.Keys())
	}
}

func TestPermissionsFor_ReturnsNoDuplicates(t *testing.T) {
	gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	maps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	b := &blueprint.Blueprint{Spec: blueprint.Spec{DeletionPolicy: blueprint.Delete}}
	all := permissionsFor(b, gvr, []instances.Child{{GVR: maps, Path: "a"}, {GVR: maps, Path: "b"}}, nil, nil)
	want := len(instanceVerbs) + 2 + len(childVerbs)
	if len(all) != want {
		t.Errorf("got %d permissions, want %d: %v", len(all), want, all)
	}
	if slices.ContainsFunc(all, func(p permission) bool { return p.namespace != "" }) {
		t.Errorf("got permissions limited to a namespace: %v", all)
	}
	limited := permissionsFor(b, gvr, []instances.Child{{GVR: maps, Path: "a"}}, nil, []string{"shop", "team"})
	if len(limited) != 2*want || slices.ContainsFunc(limited, func(p permission) bool { return p.namespace == "" }) {
		t.Errorf("got %d permissions for two namespaces, want %d: %v", len(limited), 2*want, limited)
	}
	if all := permissionsFor(&blueprint.Blueprint{}, schema.GroupVersionResource{}, nil, nil, nil); len(all) > 0 {
		t.Errorf("a Blueprint without resources needs permissions %v", all)
	}
	verbs := func(serviceAccount string) (verbs []string) {
		b := &blueprint.Blueprint{Spec: blueprint.Spec{ServiceAccountName: serviceAccount}}
		references := []instances.Child{{GVR: maps, Path: "a"}, {GVR: maps, Path: "b"}}
		for _, p := range permissionsFor(b, schema.GroupVersionResource{}, nil, references, nil) {
			verbs = append(verbs, p.verb)
		}
		return verbs
	}
	if got := verbs(""); !slices.Equal(got, []string{"get", "list", "watch"}) {
		t.Errorf("as the platform, references need %q", got)
	}
	if got := verbs("web"); !slices.Equal(got, []string{"list", "watch"}) {
		t.Errorf("with a ServiceAccount, references need %q", got)
	}
}

func TestRejectMissing_GroupsPermissionsByPath(t *testing.T) {
	missing := append(widgets("create", "patch"),
		permission{verb: "patch", resource: schema.GroupResource{Resource: "configmaps"}, subresource: "status",
			path: "spec.type"})
	got := rejectMissing(missing)
	for _, want := range []string{
		"spec.resources[0].template: the platform has no permission to create, patch widgets.example.com\n",
		"spec.type: the platform has no permission to patch configmaps/status\n",
		AggregationLabel,
	} {
		if !strings.Contains(got.message, want) {
			t.Errorf("got %q, want %q", got.message, want)
		}
	}
	if len(missing) != 3 || missing[0].verb != "create" {
		t.Errorf("the argument was modified: %v", missing)
	}
}

func TestReviewDelay_GrowsWithAttempts(t *testing.T) {
	for times, want := range map[int]time.Duration{0: time.Second, 1: 2 * time.Second, 4: 16 * time.Second,
		5: 30 * time.Second, 1000: 30 * time.Second} {
		if got := reviewDelay(times); got != want {
			t.Errorf("after %d attempts: delay %s, want %s", times, got, want)
		}
	}
}

func TestRejectMissing_ListsNamespaces(t *testing.T) {
	shop, team := widgets("list", "watch"), widgets("watch")
	for i := range shop {
		shop[i].namespace = "shop"
	}
	team[0].namespace = "team"
	got, want := rejectMissing(append(shop, team...)).message,
		"spec.resources[0].template: the platform has no permission to list, watch widgets.example.com in namespace shop\n"+
			"spec.resources[0].template: the platform has no permission to watch widgets.example.com in namespace team\n"+
			"grant the missing permissions with a Role and a RoleBinding in the namespace"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
