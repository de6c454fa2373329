package platform

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// fakeEngine notes what it is asked for.
type fakeEngine struct {
	store   cache.Indexer // the definitions
	handler dynamiccontroller.Handler
	calls   []string
	err     error // of the next call
}

var _ Engine = (*fakeEngine)(nil)

func (e *fakeEngine) note(what string, gvr schema.GroupVersionResource) error {
	err := e.err
	e.err = nil
	if err == nil {
		e.calls = append(e.calls, what+" "+nameOf(gvr))
	}
	return err
}

func (e *fakeEngine) StartServingGVK(_ context.Context, gvr schema.GroupVersionResource, handler dynamiccontroller.Handler, _ ...dynamiccontroller.ServeOption) error {
	if gvr == definitions {
		e.handler = handler
		return nil
	}
	return e.note("start", gvr)
}

func (e *fakeEngine) StopServiceGVK(_ context.Context, gvr schema.GroupVersionResource) error {
	return e.note("stop", gvr)
}

func (e *fakeEngine) Lister(gvr schema.GroupVersionResource) (cache.GenericLister, error) {
	return cache.NewGenericLister(e.store, gvr.GroupResource()), nil
}

// testPlatform is a platform on a fake engine, and the errors that it has logged.
type testPlatform struct {
	*testing.T
	engine *fakeEngine
	errors int
}

func newTestPlatform(t *testing.T) *testPlatform {
	p := &testPlatform{T: t, engine: &fakeEngine{store: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})}}
	if err := Serve(t.Context(), countErrors(&p.errors), p.engine, &fake.FakeDynamicClient{}); err != nil {
		t.Fatal(err)
	}
	return p
}

// countErrors returns a logger that counts its errors.
func countErrors(n *int) logr.Logger {
	return funcr.New(func(_, args string) {
		if strings.Contains(args, `"error"=`) {
			*n++
		}
	}, funcr.Options{})
}

// apply shows the platform the definition and expects the calls that come of it.
func (p *testPlatform) apply(crd *apiextensionsv1.CustomResourceDefinition, want ...string) {
	p.Helper()
	if err := p.engine.store.Add(definitionOf(crd.DeepCopy())); err != nil {
		p.Fatal(err)
	}
	p.reconcile(crd, want...)
}

func (p *testPlatform) reconcile(crd *apiextensionsv1.CustomResourceDefinition, want ...string) {
	p.Helper()
	p.engine.calls = nil
	if err := p.engine.handler(p.Context(), dynamiccontroller.ObjectIdentifiers{NamespacedKey: crd.Name, GVR: definitions}); err != nil {
		p.Fatal(err)
	}
	if !slices.Equal(p.engine.calls, want) {
		p.Fatalf("got the calls %q, want %q", p.engine.calls, want)
	}
}

func TestATypeIsServedOnceItIsEstablished(t *testing.T) {
	p := newTestPlatform(t)
	crd := testCRD("widgets", testVersion("v1"))
	established := crd.Status.Conditions
	crd.Status.Conditions = established[:1]
	p.apply(crd)
	crd.Status.Conditions = established
	p.apply(crd, "start widgets.v1.example.com")
	p.apply(crd)
}

func TestATypeIsReleasedWithItsDefinition(t *testing.T) {
	p := newTestPlatform(t)
	crd := testCRD("widgets", testVersion("v1"))
	p.apply(crd, "start widgets.v1.example.com")
	if err := p.engine.store.Delete(crd); err != nil {
		t.Fatal(err)
	}
	p.reconcile(crd, "stop widgets.v1.example.com")
	p.reconcile(crd)
	p.apply(crd, "start widgets.v1.example.com")
}

func TestAnotherVersionIsServedAfterTheOldOneHasStopped(t *testing.T) {
	p := newTestPlatform(t)
	crd := testCRD("widgets", testVersion("v1"), testVersion("v2"))
	p.apply(crd, "start widgets.v1.example.com")
	crd.Spec.Versions[0].Served = false
	p.apply(crd, "stop widgets.v1.example.com", "start widgets.v2.example.com")
	crd.Spec.Versions[1].Served = false
	p.apply(crd, "stop widgets.v2.example.com")
	if p.errors != 1 {
		t.Errorf("%d errors logged that no version is served, want 1", p.errors)
	}
}

func TestAStopThatFailsIsTriedAgainBeforeAnythingStarts(t *testing.T) {
	p := newTestPlatform(t)
	crd := testCRD("widgets", testVersion("v1"), testVersion("v2"))
	p.apply(crd, "start widgets.v1.example.com")
	crd.Spec.Versions[0].Served = false
	if err := p.engine.store.Add(definitionOf(crd)); err != nil {
		t.Fatal(err)
	}
	failure := errors.New("still running")
	p.engine.err = failure
	err := p.engine.handler(t.Context(), dynamiccontroller.ObjectIdentifiers{NamespacedKey: crd.Name, GVR: definitions})
	if !errors.Is(err, failure) {
		t.Fatalf("got the error %v", err)
	}
	p.reconcile(crd, "stop widgets.v1.example.com", "start widgets.v2.example.com")
}

func TestWhatIsInTheWayIsSaidOnce(t *testing.T) {
	p := newTestPlatform(t)
	crd := testCRD("widgets", testVersion("v1"))
	subresources := crd.Spec.Versions[0].Subresources
	crd.Spec.Versions[0].Subresources = nil
	p.apply(crd)
	p.apply(crd)
	if p.errors != 1 {
		t.Errorf("%d errors logged, want 1", p.errors)
	}
	crd.Spec.Versions[0].Subresources = subresources
	p.apply(crd, "start widgets.v1.example.com")
	crd.Spec.Versions[0].Subresources = nil
	p.apply(crd, "stop widgets.v1.example.com")
	if p.errors != 2 {
		t.Errorf("%d errors logged, want 2", p.errors)
	}
}

func TestAHandlerIsSwappedWhenOtherRulesHoldForTheStatus(t *testing.T) {
	p := newTestPlatform(t)
	crd := testCRD("widgets", testVersion("v1"))
	p.apply(crd, "start widgets.v1.example.com")
	status := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]
	conditions := status.Properties["conditions"]
	conditions.XListType = nil
	status.Properties["conditions"] = conditions
	p.apply(crd, "start widgets.v1.example.com")
}
