package instances

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/rollout"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// liveInstances returns the object of get, and counts the calls.
type liveInstances struct {
	get   func() (*unstructured.Unstructured, error)
	calls int
}

func (l *liveInstances) Get(
	context.Context, schema.GroupVersionResource, string, string,
) (*unstructured.Unstructured, error) {
	l.calls++
	return l.get()
}

func (l *liveInstances) List(
	context.Context, schema.GroupVersionResource, string, labels.Selector,
) ([]*unstructured.Unstructured, error) {
	return nil, errors.ErrUnsupported
}

// withSize compiles a Blueprint whose type has the field spec.size.
func withSize(t *testing.T, size map[string]any) Revision {
	t.Helper()
	b := &blueprint.Blueprint{}
	b.Name = "websites"
	spec := map[string]any{"type": "object", "properties": map[string]any{"size": size}}
	b.Spec.Type = blueprint.Type{
		Group: website.Group, Version: website.Version, Kind: website.Kind,
		Schema: map[string]any{"type": "object", "properties": map[string]any{"spec": spec}},
	}
	compiled, err := blueprint.Compile(b, blueprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return Revision{Blueprint: b.Name, Compiled: compiled}
}

func sized(uid types.UID, spec map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetGroupVersionKind(website)
	object.SetNamespace(flowers.Namespace())
	object.SetName(flowers.Name())
	object.SetUID(uid)
	return object
}

func TestSchemaReader_ReadsInstancesUnderTheSchemaOfTheRevision(t *testing.T) {
	notFound := apierrors.NewNotFound(flowers.GVR.GroupResource(), flowers.Name())
	failed := errors.New("etcd is down")
	old, read := map[string]any{}, map[string]any{"size": int64(3)}
	const settling, settled = time.Second, settlePeriod
	for name, test := range map[string]struct {
		age        time.Duration // of the change of the schema
		cached     map[string]any
		live       *unstructured.Unstructured
		err        error
		want       map[string]any // the spec of the result
		requests   int
		again      bool
		uses, next int // requests for the next two calls, if the result is an instance
	}{
		"the cache is current":              {settled, read, nil, failed, read, 0, false, 0, 0},
		"the cache may be current":          {settling, read, sized("u", read), nil, read, 1, false, 1, 1},
		"the cache is outdated":             {settling, old, sized("u", read), nil, read, 1, false, 1, 1},
		"the cache is outdated for long":    {settled, old, sized("u", read), nil, read, 1, false, 1, 1},
		"the API server is outdated":        {settling, old, sized("u", old), nil, nil, 1, true, 0, 0},
		"the API server has another schema": {settled, old, sized("u", old), nil, old, 1, false, 0, 0},
		"recreated":                         {settled, old, sized("v", read), nil, nil, 1, true, 0, 0},
		"deleted":                           {settling, old, nil, notFound, nil, 1, false, 0, 0},
		"the request fails":                 {settling, read, nil, failed, nil, 1, false, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				live := &liveInstances{get: func() (*unstructured.Unstructured, error) { return test.live, test.err }}
				before := &Reconcilers{
					newest: &Reconciler{Revision: withSize(t, map[string]any{"type": "integer"})}, schema: &schemaReader{},
				}
				s := newSchemaReader(live, withSize(t, map[string]any{"type": "integer", "default": 3}),
					Rollout{Replaces: before})
				time.Sleep(test.age)
				got, err := s.read(t.Context(), flowers, sized("u", test.cached), false)
				_, again := dynamiccontroller.RequeueDelay(err)
				wantErr := errors.Is(test.err, failed) && test.requests > 0
				if live.calls != test.requests || again != test.again || (err != nil) != (again || wantErr) {
					t.Errorf("got %d requests and error %v", live.calls, err)
				}
				checkSize(t, got, test.want)
				for _, want := range []int{test.uses, test.next} {
					if live.calls = 0; got == nil {
						break
					}
					if next, err := s.read(t.Context(), flowers, sized("u", test.cached), false); next == nil || live.calls != want {
						t.Errorf("got instance %v, error %v and %d further requests, want %d", next, err, live.calls, want)
					}
				}
			})
		})
	}
}

// checkSize checks spec.size of an instance, which must be nil if there is no spec.
func checkSize(t *testing.T, got *unstructured.Unstructured, spec map[string]any) {
	t.Helper()
	if (got != nil) != (spec != nil) {
		t.Fatalf("got instance %v, want spec %v", got, spec)
	}
	if got == nil {
		return
	}
	if size := got.Object["spec"].(map[string]any)["size"]; size != spec["size"] {
		t.Errorf("got size %v, want %v", size, spec["size"])
	}
}

func TestSchemaReader_SettlesAfterAChangeOfTheSchema(t *testing.T) {
	one, another := map[string]any{"type": "integer"}, map[string]any{"type": "integer", "default": 3}
	now := time.Now()
	settled := now.Add(-time.Hour)
	replaces := func(revision Revision) *Reconcilers {
		return &Reconcilers{newest: &Reconciler{Revision: revision}, schema: &schemaReader{settled: settled}}
	}
	since, soon := rollout.Revision{Since: now}, now.Add(settlePeriod)
	for name, test := range map[string]struct {
		plan  Rollout
		first time.Time
		last  time.Time
	}{
		"the first revision": {Rollout{Revision: since}, time.Time{}, time.Time{}},
		"a new process":      {Rollout{Revision: since, HasPredecessor: true}, soon, soon},
		"the same schema":    {Rollout{Replaces: replaces(withSize(t, one))}, settled, settled},
		"another schema":     {Rollout{Replaces: replaces(withSize(t, another))}, soon, now.Add(time.Hour)},
		"only deletions were handled": {
			Rollout{Replaces: replaces(Revision{}), Revision: since, HasPredecessor: true}, soon, soon,
		},
		"no revision was served before": {Rollout{Replaces: replaces(Revision{}), Revision: since}, time.Time{}, time.Time{}},
	} {
		got := newSchemaReader(nil, withSize(t, one), test.plan).settled
		if got.Before(test.first) || got.After(test.last) {
			t.Errorf("%s: got %v, want %v to %v", name, got, test.first, test.last)
		}
	}
}
