package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

var (
	instanceCount = flag.Int("instances", 1000, "instances in the platform benchmark, with three children each")
	editCount     = flag.Int("edits", 100,
		"number of deleted children, and number of edited instances, in the platform benchmark")
	platformBefore = flag.String("platform-before", "",
		"binary of an older dynamic-controller, which the platform benchmarks measure as ours"+beforeSuffix)
	platformAgain = flag.Bool("platform-again", false,
		"measure ours a second time in the platform benchmarks, as ours"+againSuffix+", to show the noise")
)

// BenchmarkPlatform compares the demo platform with kro. Both serve a type whose instances have three children.
func BenchmarkPlatform(b *testing.B) {
	describeRun(b, shared.Cluster(b).Config())
	fmt.Printf("platform: %d instances, %d edits\n", *instanceCount, *editCount)
	binaries := b.TempDir()
	for _, p := range comparedPlatforms() {
		b.Run("engine="+p.name, func(b *testing.B) {
			binary := p.build(b, binaries)
			reportMedians(b, func() (measures, error) {
				ctx, cancel := context.WithTimeoutCause(b.Context(), jobTimeout, errTimeout)
				defer cancel()
				r := p.prepare(b, *instanceCount, *editCount, 5*time.Second)
				m, err := r.measure(ctx, binary, r.phases())
				if err == nil {
					measured.add("platform", p.name, m)
				}
				return m, err
			})
		})
	}
}

// The platform and kro are measured once with a few instances.
func TestBenchmarkPlatform_Smoke(t *testing.T) {
	for _, p := range platforms[:2] {
		t.Run(p.name, func(t *testing.T) {
			binary := p.build(t, t.TempDir())
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errTimeout)
			defer cancel()
			r := p.prepare(t, 5, 2, 500*time.Millisecond)
			m, err := r.measure(ctx, binary, r.phases())
			if err != nil {
				t.Fatal(err)
			}
			for _, each := range m {
				t.Logf("%s %s", each.Unit, each)
				if each.Value <= 0 {
					t.Errorf("got %s = %v, want a positive value", each.Unit, each.Value)
				}
			}
			if writes := m.value("writes/instance"); writes < 4 {
				t.Errorf("got %v writes/instance, want at least one for each child and one for the status", writes)
			}
		})
	}
}

// platformRun measures a platform.
type platformRun struct {
	platform
	client           dynamic.Interface
	kube             kubernetes.Interface
	kubeconfig       string
	log              string // The file that contains the platform's log.
	instances, edits int
	still            time.Duration // The platform is idle if it has written nothing for this time.
}

func (p platform) prepare(tb testing.TB, instances, edits int, still time.Duration) *platformRun {
	tb.Helper()
	cluster := shared.Cluster(tb)
	config := cluster.Config()
	config.QPS = -1
	client, err1 := dynamic.NewForConfig(config)
	kube, err2 := kubernetes.NewForConfig(config)
	if err := errors.Join(err1, err2); err != nil {
		tb.Fatal(err)
	}
	return &platformRun{platform: p, client: client, kube: kube, kubeconfig: cluster.Kubeconfig(),
		log: filepath.Join(tb.TempDir(), "log"), instances: instances, edits: edits, still: still}
}

// platformPhase is a part of a run. The platform is idle before each phase.
type platformPhase struct {
	run func(context.Context) (measures, error)
	// writes is the unit of the writes per instance, or empty if they are not reported. With byVerb, they are also
	// reported separately for each verb.
	writes string
	byVerb bool
}

func (r *platformRun) phases() []platformPhase {
	return []platformPhase{
		{run: r.serve},
		{run: r.create, writes: "writes/instance"},
		{run: r.deleteChildren},
		{run: r.edit},
		{run: r.rollOut, writes: "rollout-writes/instance"},
	}
}

// measure takes the measurements of all phases. It deletes the objects afterwards.
func (r *platformRun) measure(ctx context.Context, binary string, phases []platformPhase) (m measures, err error) {
	if err := r.install(ctx); err != nil {
		return nil, err
	}
	running, stop, err := r.start(ctx, binary)
	if err != nil {
		return nil, err
	}
	// The objects are deleted after the platform has exited, because it would recreate some of them.
	defer func() { err = errors.Join(err, r.cleanUp(context.WithoutCancel(ctx))) }()
	defer func() {
		used, err1 := stop()
		m, err = append(m, used...), errors.Join(err, err1)
		if err != nil {
			log, _ := os.ReadFile(r.log)
			err = fmt.Errorf("%w\n%s", err, lastLines(string(log)))
		}
	}()
	var before writeCounts
	for _, phase := range phases {
		got, err := phase.run(running)
		if err != nil {
			return nil, err
		}
		after, err := r.waitIdle(running)
		if err != nil {
			return nil, err
		}
		if phase.writes != "" {
			got = append(got, after.since(before).perInstance(phase.writes, phase.byVerb, r.instances)...)
		}
		m, before = append(m, got...), after
	}
	return m, nil
}

// serve defines the type and creates a first instance, which the other phases ignore.
func (r *platformRun) serve(ctx context.Context) (measures, error) {
	return nil, r.serveWith(ctx, map[string]any{"size": int64(0)})
}

// serveWith defines the type and creates a first instance with the spec. The API server delays the first POST of a new
// type by up to two seconds.
func (r *platformRun) serveWith(ctx context.Context, spec map[string]any) error {
	if err := r.define(ctx, "1"); err != nil {
		return err
	}
	if err := awaitCondition(ctx, r.client.Resource(r.definitions), definitionName, r.served); err != nil {
		return err
	}
	if err := r.createInstance(ctx, instanceName(0), spec); err != nil {
		return err
	}
	return awaitCondition(ctx, r.in(apps), instanceName(0), "Ready")
}

// create creates the instances and waits until all of them are ready.
func (r *platformRun) create(ctx context.Context) (measures, error) {
	const writers = 4
	creating, ctx := errgroup.WithContext(ctx)
	seen, err := r.follow(ctx, apps)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for w := range writers {
		creating.Go(func() error {
			for n := w; n < r.instances; n += writers {
				if err := r.createSized(ctx, 1+n); err != nil {
					return err
				}
			}
			return nil
		})
	}
	var times []time.Duration
	var last time.Time
	made := map[string]time.Time{}
	for len(times) < r.instances {
		s, err := next(ctx, seen)
		if err != nil {
			return nil, err
		}
		name := s.GetName()
		if s.event == watch.Added {
			made[name] = s.at
		}
		if at, isMade := made[name]; isMade && isTrue(s.Unstructured, "Ready") {
			delete(made, name)
			times, last = append(times, s.at.Sub(at)), s.at
		}
	}
	m := measures{{"all-ready-ns", float64(last.Sub(began))}}
	return append(m, quantiles("made-to-ready", times)...), creating.Wait()
}

// deleteChildren deletes children, one after another, and waits for each of them to be recreated.
func (r *platformRun) deleteChildren(ctx context.Context) (measures, error) {
	deleteChild := func(n int) error {
		return r.in(configMaps).Delete(ctx, childName(n), metav1.DeleteOptions{})
	}
	isBack := func(n int, s sighting) bool { return s.GetName() == childName(n) && s.event == watch.Added }
	return r.repeat(ctx, "child-back", deleteChild, isBack)
}

// edit edits instances, one after another, and waits for each change to reach the child.
func (r *platformRun) edit(ctx context.Context) (measures, error) {
	editInstance := func(n int) error {
		_, err := r.in(apps).Patch(ctx, instanceName(n), types.MergePatchType,
			fmt.Appendf(nil, `{"spec":{"size":%d}}`, editedSize(n)), metav1.PatchOptions{})
		return err
	}
	isEdited := func(n int, s sighting) bool {
		return s.GetName() == childName(n) && s.data("size") == strconv.Itoa(editedSize(n))
	}
	return r.repeat(ctx, "edit", editInstance, isEdited)
}

// editedSize returns the size of an instance after the edit. Its size before is its number.
func editedSize(n int) int { return -n }

// repeat acts on some instances, one after another, and measures the times until the watch of children shows the
// effect.
func (r *platformRun) repeat(
	ctx context.Context, unit string, act func(n int) error, hasEffect func(n int, s sighting) bool,
) (measures, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen, err := r.follow(ctx, configMaps)
	if err != nil {
		return nil, err
	}
	times := make([]time.Duration, min(r.edits, r.instances))
	for i := range times {
		began := time.Now()
		if err := act(1 + i); err != nil {
			return nil, err
		}
		for times[i] == 0 {
			s, err := next(ctx, seen)
			if err != nil {
				return nil, fmt.Errorf("wait for %s of %s: %w", unit, childName(1+i), err)
			}
			if hasEffect(1+i, s) {
				times[i] = s.at.Sub(began)
			}
		}
	}
	return quantiles(unit, times), nil
}

// rollOut changes the template of a child and waits until all children are updated.
func (r *platformRun) rollOut(ctx context.Context) (measures, error) {
	const version = "2"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen, err := r.follow(ctx, configMaps)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := r.define(ctx, version); err != nil {
		return nil, err
	}
	updated := map[string]bool{}
	for {
		s, err := next(ctx, seen)
		if err != nil {
			return nil, fmt.Errorf("%d children are updated: %w", len(updated), err)
		}
		if s.data("version") == version {
			updated[s.GetName()] = true
		}
		if len(updated) == 1+r.instances {
			return measures{{"rollout-ns", float64(s.at.Sub(began))}}, nil
		}
	}
}

// sighting is an object in a watch event.
type sighting struct {
	*unstructured.Unstructured
	event watch.EventType
	at    time.Time
	err   error // The watch has failed.
}

// data returns an entry of a ConfigMap.
func (s sighting) data(key string) string {
	value, _, _ := unstructured.NestedString(s.Object, "data", key)
	return value
}

// follow watches the objects until ctx is cancelled. It ignores existing objects. The API server closes watches of slow
// clients, so that a watch may have to be continued.
func (r *platformRun) follow(ctx context.Context, gvr schema.GroupVersionResource) (<-chan sighting, error) {
	list, err := r.in(gvr).List(ctx, oneObject)
	if err != nil {
		return nil, err
	}
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return r.in(gvr).Watch(ctx, options)
		},
	})
	if err != nil {
		return nil, err
	}
	seen := make(chan sighting, 100)
	go func() {
		defer close(seen)
		defer w.Stop()
		for event := range w.ResultChan() {
			s := sighting{event: event.Type, at: time.Now()}
			if event.Type == watch.Error {
				s.err = apierrors.FromObject(event.Object)
			} else {
				s.Unstructured = event.Object.(*unstructured.Unstructured)
			}
			select {
			case seen <- s:
			case <-ctx.Done():
				return
			}
		}
	}()
	return seen, nil
}

func next(ctx context.Context, seen <-chan sighting) (sighting, error) {
	select {
	case s, open := <-seen:
		switch {
		case ctx.Err() != nil:
			return s, context.Cause(ctx)
		case !open:
			return s, errors.New("the watch was closed")
		}
		return s, s.err
	case <-ctx.Done():
		return sighting{}, context.Cause(ctx)
	}
}
