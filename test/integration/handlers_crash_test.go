package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// lifetime is one parent's, from its creation to its end, under handlers made of every part: two named children of two kinds in
// two stages, one in another namespace, two without names, a condition, and a bucket that is no object at all.
type lifetime struct {
	*setting
	far string

	mu      sync.Mutex
	buckets map[string]bool
}

// process is one process that serves the parents of a life.
type process struct {
	*lifetime
	mortal     *mortal
	client     dynamic.Interface
	controller *dynamiccontroller.DynamicController
	children   *handlers.Children
	expected   *handlers.Expectations
	conditions handlers.Conditions
}

func (l *lifetime) begin(ctx context.Context, m *mortal) (end func()) {
	l.Helper()
	own := *l.harness
	own.config = m.through(l.config)
	p := &process{lifetime: l, mortal: m}
	p.client = must(dynamic.NewForConfig(own.config))
	p.controller = own.controller(dynamiccontroller.Config{MinRetryDelay: 10 * time.Millisecond, MaxRetryDelay: 100 * time.Millisecond})
	cached := handlers.Cached(p.controller.Lister)
	p.children = l.newChildren(handlers.ChildrenConfig{Client: p.client, Cache: cached})
	p.expected = handlers.NewExpectations(p.client, cached, 0)
	p.conditions = handlers.Conditions{Client: p.client, FieldManager: platformName + "/status"}
	forget := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		p.children.Forget(id)
		p.expected.Forget(id)
		return nil
	}
	handler := handlers.Object(cached, handlers.Finalizer(p.client, platformName+"/bucket", p.cleanUp, p.reconcile), forget)
	wake := func(_ context.Context, child dynamiccontroller.ObjectIdentifiers) error {
		if child.Namespace() == l.namespace || child.Namespace() == l.far {
			p.controller.Enqueue(l.parent("p"))
		}
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	for _, gvr := range []gvrType{configMaps, l.gadgets} {
		l.serve(p.controller, gvr, wake)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.controller.Run(ctx) }()
	// What a handler reads of other types must be there when it runs; a process that dies at once never gets there.
	for _, gvr := range []gvrType{configMaps, l.gadgets} {
		l.synced(p.controller, gvr)
	}
	l.serve(p.controller, l.parents, handler, dynamiccontroller.WithNamespace(l.namespace))
	return func() {
		cancel(errTestOver)
		if err := <-ended; err != nil {
			l.Error(err)
		}
	}
}

func (p *process) cleanUp(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured) error {
	if _, err := p.children.Reconcile(ctx, id, parent, handlers.Desired{}); err != nil {
		return err
	}
	return p.bucket(id.Name(), false)
}

func (p *process) bucket(name string, there bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.buckets[name] == there {
		return nil
	}
	return p.mortal.write(func() { p.buckets[name] = there })
}

func (p *process) reconcile(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured) error {
	if err := p.bucket(id.Name(), true); err != nil {
		return err
	}
	_, err := p.children.Reconcile(ctx, id, parent, p.wants(parent))
	if err == nil {
		err = p.unnamed(ctx, id, parent)
	}
	condition := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Done"}
	if err != nil {
		condition = metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "NotYet"}
	}
	if _, statusErr := p.conditions.Set(ctx, id, parent, condition); statusErr != nil {
		return statusErr
	}
	return err
}

func (l *lifetime) isFirst(parent *unstructured.Unstructured) bool {
	version, _, _ := unstructured.NestedString(parent.Object, "spec", "version")
	return version == "first"
}

// wants loses one child and a whole kind in the second version, and gains a child.
func (l *lifetime) wants(parent *unstructured.Unstructured) handlers.Desired {
	far := newConfigMap(l.far, "far", "x")
	if !l.isFirst(parent) {
		return stages(newConfigMap("", "b", "x"), far)
	}
	return handlers.Desired{Stages: [][]*unstructured.Unstructured{
		{newConfigMap("", "a", "x")}, {newObject(l.gadgets, "Gadget", "", "g", map[string]any{"size": "big"}), far},
	}}
}

var unnamed = labels.SelectorFromSet(labels.Set{"kind": "unnamed"})

// unnamed keeps two config maps without names, and one in the second version.
func (p *process) unnamed(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured) error {
	if err := p.expected.CatchUp(ctx, id, configMaps, p.namespace, unnamed); err != nil {
		return err
	}
	if err := p.expected.Await(ctx, id); err != nil {
		return err
	}
	there, err := handlers.Cached(p.controller.Lister).List(ctx, configMaps, p.namespace, unnamed)
	if err != nil {
		return err
	}
	want := 1
	if p.isFirst(parent) {
		want = 2
	}
	for i := len(there); i < want; i++ {
		child := newConfigMap(p.namespace, "", "x")
		child.SetGenerateName("unnamed-")
		child.SetLabels(map[string]string{"kind": "unnamed"})
		child.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(parent, parent.GroupVersionKind())})
		if _, err := p.expected.Create(ctx, id, configMaps, child); err != nil {
			return err
		}
	}
	for i := want; i < len(there); i++ {
		if err := p.expected.Delete(ctx, id, configMaps, there[i]); err != nil {
			return err
		}
	}
	return nil
}

// state is what there is of the parent in the API server and beyond.
func (l *lifetime) state() string {
	l.Helper()
	var have []string
	add := func(what string, there bool) {
		if there {
			have = append(have, what)
		}
	}
	add("a", l.get(configMaps, l.namespace, "a") != nil)
	add("b", l.get(configMaps, l.namespace, "b") != nil)
	add("far", l.get(configMaps, l.far, "far") != nil)
	add("g", l.get(l.gadgets, l.namespace, "g") != nil)
	found, err := handlers.Live(l.client).List(context.WithoutCancel(l.Context()), configMaps, l.namespace, unnamed)
	l.noError(err)
	add(fmt.Sprintf("%d unnamed", len(found)), len(found) > 0)
	l.mu.Lock()
	add("bucket", l.buckets["p"])
	l.mu.Unlock()
	if parent := l.get(l.parents, l.namespace, "p"); parent != nil {
		have = append(have, fmt.Sprintf("parent of %s", parent.GetAnnotations()[platformName+"/inventory"]))
		conditions, _, _ := unstructured.NestedSlice(parent.Object, "status", "conditions")
		for _, condition := range conditions {
			condition := condition.(map[string]any)
			if condition["observedGeneration"] == parent.GetGeneration() {
				have = append(have, fmt.Sprintf("%s=%s", condition["type"], condition["status"]))
			}
		}
	}
	return strings.Join(have, ", ")
}

// live lets processes live the parent's life through, the first of which dies at its nth write and the one after it at its
// second, and tells whether the first did. Before the second begins, a user has gone on to that phase of the life.
func (l *lifetime) live(m *mortal, userGoesOnTo int) bool {
	l.Helper()
	put := func(version string) func() {
		return func() {
			l.put(l.parents, newObject(l.parents, "Platform", l.namespace, "p", map[string]any{"version": version}))
		}
	}
	phases := []struct {
		begin func()
		end   string
	}{
		{put("first"), fmt.Sprintf("a, far, g, 2 unnamed, bucket, parent of ConfigMap=v1/configmaps,Gadget.%s=v1/gadgets, Ready=True", l.gadgets.Group)},
		{put("second"), "b, far, 1 unnamed, bucket, parent of ConfigMap=v1/configmaps, Ready=True"},
		{func() { l.noError(l.in(l.parents, l.namespace).Delete(l.Context(), "p", metav1.DeleteOptions{})) }, ""},
	}
	end := l.begin(context.WithoutCancel(l.Context()), m)
	defer func() { end() }()
	alive, processes := m, 1
	for i := 0; i < len(phases); i++ {
		phases[i].begin()
		l.eventually(fmt.Sprintf("phase %d ends (dying at write %d, after it: %t, then phase %d)", i, m.at, m.after, userGoesOnTo), func() error {
			if alive.isDead() {
				end()
				alive = newMortal(0, false)
				if processes++; processes == 2 {
					alive = newMortal(2, true) // death is no excuse for dying again
					if i < userGoesOnTo {
						i = userGoesOnTo
						phases[i].begin()
					}
				}
				end = l.begin(context.WithoutCancel(l.Context()), alive)
			}
			if have := l.state(); have != phases[i].end {
				return fmt.Errorf("there is: %s; and not: %s", have, phases[i].end)
			}
			return nil
		})
	}
	return m.isDead()
}

// A process is killed at each of its writes in turn, before it is carried out and after, when the answer is lost; the
// parent is changed or deleted, or is not; another process starts, and the end is always right.
func TestHandlers_AProcessMayDieAtEachWrite(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	const atOnce = 4
	for _, way := range []struct {
		after        bool
		userGoesOnTo int
	}{{false, 0}, {true, 0}, {true, 1}, {true, 2}} {
		deaths := 0
		for n := int64(1); int64(deaths) == n-1; n += atOnce {
			var died [atOnce]bool
			t.Run(fmt.Sprintf("at writes from %d, after it: %t, then phase %d", n, way.after, way.userGoesOnTo), func(t *testing.T) {
				for i := range died {
					t.Run(fmt.Sprint(n+int64(i)), func(t *testing.T) {
						t.Parallel()
						own := *h
						own.T = t
						own.namespace = own.newNamespace()
						mine := *s
						mine.harness = &own
						l := &lifetime{setting: &mine, far: own.newNamespace(), buckets: map[string]bool{}}
						died[i] = l.live(newMortal(n+int64(i), way.after), way.userGoesOnTo)
					})
				}
			})
			if t.Failed() {
				return
			}
			for _, died := range died {
				if died {
					deaths++
				}
			}
		}
		// Two finalizers and their removal, two kinds and their striking off, six children and their deletion, a bucket.
		t.Logf("%d deaths, after the write: %t, then phase %d", deaths, way.after, way.userGoesOnTo)
		if deaths < 15 {
			t.Errorf("only %d deaths: the life has more writes", deaths)
		}
	}
}

// Children without names are never made twice, however often a handler is called while the cache is two seconds behind, and
// although the answer to one request is lost.
func TestHandlers_ALateCacheDoublesNothing(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	const lag, want = 2 * time.Second, 3
	own := *h
	posts := &tally{}
	var lost atomic.Bool
	own.config = posts.through(wrapped(wrapped(h.config, late(s.gadgets, lag)), func(r *http.Request, send send) (*http.Response, error) {
		answer, err := send(r)
		if err == nil && r.Method == http.MethodPost && isFor(r, s.gadgets) && lost.CompareAndSwap(false, true) {
			_ = answer.Body.Close()
			return nil, errors.New("the connection broke")
		}
		return answer, err
	}))
	controller := own.controller(dynamiccontroller.Config{})
	client := must(dynamic.NewForConfig(own.config))
	cached := handlers.Cached(controller.Lister)
	expected := handlers.NewExpectations(client, cached, 0)
	calls := newRecorder(t, handlers.Object(cached, func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured) error {
		if err := expected.Await(ctx, id); err != nil {
			return err
		}
		there, err := cached.List(ctx, s.gadgets, h.namespace, labels.Everything())
		if err != nil {
			return err
		}
		for i := len(there); i < want; i++ {
			child := newObject(s.gadgets, "Gadget", h.namespace, "", nil)
			child.SetGenerateName("g-")
			if _, err := expected.Create(ctx, id, s.gadgets, child); err != nil {
				return err
			}
		}
		for i := want; i < len(there); i++ {
			if err := expected.Delete(ctx, id, s.gadgets, there[i]); err != nil {
				return err
			}
		}
		return nil
	}, nil))
	h.run(controller)
	h.serve(controller, s.gadgets, func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil })
	h.synced(controller, s.gadgets)
	h.serve(controller, s.parents, calls.handle, dynamiccontroller.WithNamespace(h.namespace))
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	count := func(from handlers.Reader) int {
		found, err := from.List(t.Context(), s.gadgets, h.namespace, labels.Everything())
		h.noError(err)
		return len(found)
	}
	id := s.parent("p")
	call := func() {
		n := calls.count(id)
		controller.Enqueue(id)
		calls.waitFor(id, n+1)
	}
	storm := func() {
		for range 20 {
			call()
		}
	}
	meanwhile := 0
	h.eventually("the cache shows them", func() error {
		if n := count(cached); n < want {
			meanwhile++
			call()
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	if meanwhile < 20 {
		t.Errorf("only %d calls while the cache was behind", meanwhile)
	}
	storm()
	if n := count(handlers.Live(h.client)); n != want {
		t.Errorf("there are %d", n)
	}
	if n := posts.writes.Load(); n != want {
		t.Errorf("%d writes for %d children", n, want)
	}

	// One is deleted by a user: one is made, once the cache shows it, and no more.
	found, err := handlers.Live(h.client).List(t.Context(), s.gadgets, h.namespace, labels.Everything())
	h.noError(err)
	h.noError(h.in(s.gadgets, h.namespace).Delete(t.Context(), found[0].GetName(), metav1.DeleteOptions{}))
	h.eventually("it is replaced", func() error {
		storm()
		if n := posts.writes.Load(); n == want {
			return errors.New("not yet")
		}
		return nil
	})
	storm()
	if n := posts.writes.Load(); n != want+1 {
		t.Errorf("%d writes for %d children", n, want+1)
	}
}
