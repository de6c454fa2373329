package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fakemetadata"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/recordclient"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/shards"
)

func typeOf(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: resource}
}

var (
	widgets = typeOf("widgets") // the type of the feed
	gadgets = typeOf("gadgets")
	gizmos  = typeOf("gizmos")
)

// recorder is a target that records its calls.
type recorder struct {
	mu      sync.Mutex
	calls   []string
	paused  bool
	resumed time.Time
	// affectedBy is the object of a secondary that has changed last. The calls do not include it.
	affectedBy string
}

var _ Target = (*recorder)(nil)

func (r *recorder) record(kind string, keys ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range keys {
		r.calls = append(r.calls, kind+" "+key)
	}
}

func (r *recorder) setPaused(paused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused = paused
	if !paused {
		r.resumed = time.Now()
	}
}

func (r *recorder) Pause()                    { r.setPaused(true) }
func (r *recorder) Resume()                   { r.setPaused(false) }
func (r *recorder) AddExisting(keys []string) { r.record("existing", keys...) }
func (r *recorder) AddChanged(keys []string)  { r.record("changed", keys...) }
func (r *recorder) AddCallers(keys []string)  { r.record("caller", keys...) }
func (r *recorder) AddAllAfterLoss()          { r.record("all", "objects after a loss") }
func (r *recorder) AddAllAfterSwap()          { r.record("all", "objects") }
func (r *recorder) AddAffected(keys []string, gvr schema.GroupVersionResource, key string) {
	r.record("changed", keys...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.affectedBy = gvr.Resource + " " + key
}
func (r *recorder) Deleted(key string, accepted bool) {
	r.record(fmt.Sprint("deleted ", accepted), key)
}
func (r *recorder) Malformed(name, key string, _ error) { r.record("malformed "+name, key) }

func (r *recorder) Normalize(key string) (string, error) {
	if key == "" {
		return "", errors.New("no name")
	}
	return strings.TrimPrefix(key, "/"), nil
}

func (r *recorder) isPaused() bool {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paused
}

// expect compares the calls since the last time, in any order.
func (r *recorder) expect(t testing.TB, step string, want ...string) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.calls)
	slices.Sort(want)
	if diff := cmp.Diff(want, r.calls); diff != "" {
		t.Errorf("%s: %s", step, diff)
	}
	r.calls = nil
}

// fixture is a feed on a pool with client-go's fake client, in a synctest bubble.
type fixture struct {
	*Feed
	t      *testing.T
	client *fake.FakeDynamicClient
	target *recorder

	mu       sync.Mutex
	versions map[schema.GroupVersionResource]int
	errs     map[schema.GroupVersionResource]error         // of lists
	gates    map[schema.GroupVersionResource]chan struct{} // lists wait until the channel is closed
	endRun   context.CancelFunc
}

// bubble calls test with a feed in a synctest bubble. The watches run until test has returned.
func bubble(t *testing.T, options *Options, test func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.start(options)()
		test(f)
	})
}

// start creates the feed and starts the watches.
func (f *fixture) start(options *Options) (end func()) {
	pool := typewatch.NewPool(typewatch.Config{
		Source: recordclient.Clients{Dynamic: f.client, Metadata: fakemetadata.New(f.client, f.wait)},
		Log:    func(schema.GroupVersionResource) logr.Logger { return logr.Discard() },
	})
	f.Feed = New(pool, logr.Discard(), f.target, options, true, shards.Shard{})
	<-f.Start()
	stop := pool.Start()
	synctest.Wait()
	return func() {
		f.Close()
		stop()
		<-f.Ended()
	}
}

func newFixture(t *testing.T) *fixture {
	kinds := map[schema.GroupVersionResource]string{widgets: "WidgetList", gadgets: "GadgetList", gizmos: "GizmoList"}
	f := &fixture{
		t: t, target: &recorder{}, versions: map[schema.GroupVersionResource]int{},
		client: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds),
		errs:   map[schema.GroupVersionResource]error{}, gates: map[schema.GroupVersionResource]chan struct{}{},
	}
	f.client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		err := f.errs[action.GetResource()]
		return err != nil, nil, err
	})
	return f
}

// wait blocks a list while the type's gate is closed.
func (f *fixture) wait(gvr schema.GroupVersionResource) {
	f.mu.Lock()
	gate := f.gates[gvr]
	f.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

// block makes the lists of a type wait until unblock is called.
func (f *fixture) block(gvr schema.GroupVersionResource) (unblock func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate := make(chan struct{})
	f.gates[gvr] = gate
	return func() {
		f.mu.Lock()
		delete(f.gates, gvr)
		f.mu.Unlock()
		close(gate)
		synctest.Wait()
	}
}

// fail makes the lists of a type fail, or succeed if err is nil.
func (f *fixture) fail(gvr schema.GroupVersionResource, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs[gvr] = err
}

// put creates or changes an object. The first of the owners, which are widgets, is its controller.
func (f *fixture) put(gvr schema.GroupVersionResource, name string, owners ...string) {
	f.t.Helper()
	f.versions[gvr]++
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvr.GroupVersion().WithKind("Kind"))
	object.SetName(name)
	object.SetUID(types.UID(gvr.Resource + "/" + name))
	object.SetResourceVersion(fmt.Sprint(f.versions[gvr] + 1))
	var references []metav1.OwnerReference
	for i, owner := range owners {
		references = append(references, metav1.OwnerReference{
			APIVersion: "example.com/v1", Kind: "Kind", Name: owner, UID: types.UID("widgets/" + owner),
			Controller: ptr.To(i == 0),
		})
	}
	object.SetOwnerReferences(references)
	client := f.client.Resource(gvr)
	_, err := client.Get(f.t.Context(), name, metav1.GetOptions{})
	if err == nil {
		_, err = client.Update(f.t.Context(), object, metav1.UpdateOptions{})
	} else {
		_, err = client.Create(f.t.Context(), object, metav1.CreateOptions{})
	}
	if err != nil {
		f.t.Fatal(err)
	}
	synctest.Wait()
}

func (f *fixture) delete(gvr schema.GroupVersionResource, name string) {
	f.t.Helper()
	if err := f.client.Tracker().Delete(gvr, "", name); err != nil {
		f.t.Fatal(err)
	}
	synctest.Wait()
}

// attach begins a run.
func (f *fixture) attach() {
	f.t.Helper()
	f.target.Pause()
	ctx, cancel := context.WithCancel(f.t.Context())
	f.endRun = cancel
	<-f.Attach(nil, func() context.Context { return ctx })
	synctest.Wait()
}

// detach ends a run.
func (f *fixture) detach() {
	f.endRun()
	<-f.Detach()
	synctest.Wait()
}

// state returns the state of a swap.
func (f *fixture) state(s *swap) swapState {
	synctest.Wait()
	f.Feed.mu.Lock()
	defer f.Feed.mu.Unlock()
	return s.state
}

// expectPaused waits for the duration and checks whether the target is paused.
func (f *fixture) expectPaused(after time.Duration, want bool) {
	f.t.Helper()
	time.Sleep(after)
	if paused := f.target.isPaused(); paused != want {
		f.t.Errorf("the target is paused: %t, want %t", paused, want)
	}
}

// expectSecondaries checks for which types there is a secondary.
func (f *fixture) expectSecondaries(step string, want ...schema.GroupVersionResource) {
	f.t.Helper()
	synctest.Wait()
	got := map[schema.GroupVersionResource]bool{}
	for key := range f.Secondaries() {
		got[key.GVR] = true
	}
	wanted := map[schema.GroupVersionResource]bool{}
	for _, gvr := range want {
		wanted[gvr] = true
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		f.t.Errorf("%s: %s", step, diff)
	}
}

func sourceFor(gvr schema.GroupVersionResource) *Source {
	return &Source{
		Name:  gvr.Resource,
		Watch: typewatch.Options{Key: typewatch.Key{Selection: typewatch.Selection{GVR: gvr}, Projection: objects.Metadata}},
	}
}

// selected returns a primary source that needs another watch than sourceFor, but selects the same objects.
func selected() *Source {
	source := sourceFor(widgets)
	source.Watch.LabelSelector = "!excluded"
	return source
}

// owned returns the source of a secondary whose objects are owned by widgets.
func owned(gvr schema.GroupVersionResource) *Source {
	source := sourceFor(gvr)
	source.Owned, source.Watch.Secondary = true, true
	return source
}

// mapped returns the source of a secondary whose objects lead to the keys that targets returns.
func mapped(gvr schema.GroupVersionResource, targets func() []string) *Source {
	source := owned(gvr)
	source.Owned = false
	source.Targets = func(Environment, *typewatch.Object) []string { return targets() }
	return source
}

func serving(secondaries ...*Source) *Options {
	return &Options{Primary: sourceFor(widgets), Secondaries: secondaries}
}

// add calls AddWatches for a caller that is not a handler.
func (f *fixture) add(sources ...*Source) {
	f.t.Helper()
	if err := <-f.AddWatches(sources, Caller{}); err != nil {
		f.t.Error(err)
	}
}

// update calls UpdateWatches.
func (f *fixture) update(caller Caller, sources ...*Source) (updated bool, err error) {
	return f.UpdateWatches(len(sources), func(i int) *Source { return sources[i] }, caller)
}

// remove calls RemoveWatches.
func (f *fixture) remove(keys ...Key) (done <-chan struct{}) {
	return f.RemoveWatches(len(keys), func(i int) Key { return keys[i] })
}
