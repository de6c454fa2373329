package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/test/e2e/internal/history"
)

// workerEnv names an environment variable that contains a job in JSON. If the variable is set, the test binary runs as
// a replica.
const workerEnv = "E2E_WORKER"

// job configures a replica.
type job struct {
	Process    string // The name of the process in the log.
	Member     string // The name of the ConfigMap that the replica writes to probe its fence.
	Kubeconfig string
	Server     string // The address of the proxy in front of the API server.
	Log        string
	Namespace  string // The namespace of the leases and of all objects.
	Lease      string
	Shards     int                           // Zero for a single leader.
	Types      []schema.GroupVersionResource // The served types.
	Traps      string                        // The directory of the traps.
	// Username is the user whose writes are also fenced by the API server. It is empty if they are not.
	Username string
}

// Timings of the leader election.
const (
	leaseDuration = 3 * time.Second
	renewDeadline = 2 * time.Second
	retryPeriod   = 500 * time.Millisecond
)

// work runs the process of a replica and returns its exit code.
func work(spec string) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // The test process has exited.
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := doJob(ctx, spec); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// worker is a replica.
type worker struct {
	job
	log    *history.Log
	engine *dynamiccontroller.DynamicController
	client dynamic.Interface    // Fenced.
	probe  kubernetes.Interface // Fenced.
	terms  termContexts
	status func() replica.Status
}

func doJob(ctx context.Context, spec string) error {
	w := &worker{}
	if err := json.Unmarshal([]byte(spec), &w.job); err != nil {
		return err
	}
	var err error
	if w.log, err = history.Open(w.Log, w.Process); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", w.Kubeconfig)
	if err != nil {
		return err
	}
	config.Host, config.QPS = "https://"+w.Server, -1
	r, err := w.replica(config)
	if err != nil {
		return err
	}
	w.log.Add(history.Event{Kind: history.Started, Holder: r.Status().Identity})

	probeCtx, stopProbes := context.WithCancel(context.WithoutCancel(ctx))
	var probing sync.WaitGroup
	probing.Go(func() { w.probeFence(probeCtx) })
	probing.Go(func() { w.recordWarmShards(probeCtx) })
	err = r.Run(ctx)
	stopProbes()
	probing.Wait()
	exit := history.Event{Kind: history.Exit}
	if err != nil {
		exit.Error = err.Error()
	}
	w.log.Add(exit)
	return err
}

// replica creates a replica and an engine, connects them as a regular program would, and adds recorders to their
// clients.
func (w *worker) replica(config *rest.Config) (*replica.Replica, error) {
	log := w.logger()
	recorded := rest.CopyConfig(config)
	recorded.Wrap(w.recordLeaseRequests)
	r, err := replica.New(log.WithName("replica"), recorded, replica.Options{
		LeaseName: w.Lease, LeaseNamespace: w.Namespace, Identity: w.Process, Shards: w.Shards,
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
	})
	if err != nil {
		return nil, err
	}
	w.status = r.Status
	fenced := r.FencedConfig()
	if w.Username != "" {
		fenced = r.FenceOnServer(recorded, w.Username)
	}
	fenced = w.recordWrites(fenced)
	if w.client, err = dynamic.NewForConfig(fenced); err != nil {
		return nil, err
	}
	if w.probe, err = kubernetes.NewForConfig(fenced); err != nil {
		return nil, err
	}
	// Retry quickly, because the API server is unavailable only for a few seconds.
	tuned := dynamiccontroller.Config{QueueMaxRetries: -1, MaxRetryDelay: 500 * time.Millisecond}
	if w.engine, err = dynamiccontroller.NewForConfig(log.WithName("engine"), tuned, config); err != nil {
		return nil, err
	}
	for _, gvr := range w.Types {
		err = errors.Join(err, w.engine.StartServingGVK(context.Background(), gvr, w.handle,
			dynamiccontroller.WithNamespaces(w.Namespace)))
	}
	if w.Shards > 0 {
		err = errors.Join(err, r.Register("singleton", replica.RunFunc(w.leadFleet), replica.ScopeLeader))
	}
	// Without shards, the following runnables are those of one leader.
	return r, errors.Join(err,
		r.Register("watches", &watchRunnable{w.engine.Watches(), w}, replica.ScopeWarmShard),
		r.Register("engine", replica.RunFunc(w.lead), replica.ScopeShard))
}

func (w *worker) logger() logr.Logger {
	return funcr.New(func(prefix, args string) {
		fmt.Fprintf(os.Stderr, "%.6f %s %s\n", time.Duration(history.Now()).Seconds(), prefix, args)
	}, funcr.Options{Verbosity: 1})
}

// watchRunnable runs on every replica, or for each shard that a replica keeps warm.
type watchRunnable struct {
	dynamiccontroller.WatchRunner
	*worker
}

func (r *watchRunnable) Run(ctx context.Context) error {
	r.log.Add(history.Event{Kind: history.Watches, Lease: r.leaseOf(ctx)})
	err := r.WatchRunner.Run(ctx)
	if index, count := replica.Shard(ctx); count > 1 {
		left := history.Event{Kind: history.Left, Lease: r.shardLease(index)}
		if rest := r.leftovers(index, count); rest != nil {
			left.Error = rest.Error()
		}
		r.log.Add(left)
	}
	return err
}

// lead runs on the leader, or for each shard that a replica leads.
func (w *worker) lead(ctx context.Context) error { return w.recordTerm(ctx, w.engine.Run) }

// leadFleet runs on the leader of a fleet with shards.
func (w *worker) leadFleet(ctx context.Context) error {
	return w.recordTerm(ctx, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
}

func (w *worker) recordTerm(ctx context.Context, run func(context.Context) error) error {
	term, _ := replica.Term(ctx)
	lease := w.leaseOf(ctx)
	w.terms.add(ctx, lease)
	w.log.Add(history.Event{Kind: history.Leads, Lease: lease, Term: term})
	defer context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); errors.Is(cause, replica.ErrLeaseLost) {
			w.log.Add(history.Event{Kind: history.Lost, Lease: lease, Term: term, Error: cause.Error()})
		}
	})()
	err := run(ctx)
	w.log.Add(history.Event{Kind: history.Led, Lease: lease, Term: term})
	return err
}

// handle logs the start and the end of a reconcile.
func (w *worker) handle(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	term, _ := replica.Term(ctx)
	lease := w.leaseOf(ctx)
	w.log.Add(history.Event{Kind: history.Begin, Lease: lease, Term: term, Object: id.Name()})
	if w.isTrap(trapHandler, lease) {
		<-ctx.Done() // The shard moves.
		w.stopItself()
	}
	if w.isTrap(trapSlowHandler, lease) {
		<-ctx.Done()
		w.linger(ctx)
	}
	n, err := w.reconcile(ctx, id, term)
	end := history.Event{Kind: history.End, Lease: lease, Term: term, Object: id.Name(), N: n}
	if err != nil {
		end.Error = err.Error()
	}
	w.log.Add(end)
	return err
}

// reconcile copies the change number from an object's spec to its status and returns the number.
func (w *worker) reconcile(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, term int64) (int64, error) {
	lister, err := w.engine.Lister(id.GVR)
	if err != nil {
		return 0, err
	}
	object, err := lister.ByNamespace(id.Namespace()).Get(id.Name())
	if apierrors.IsNotFound(err) {
		return 0, nil // The object was deleted.
	}
	if err != nil {
		return 0, err
	}
	content := object.(*unstructured.Unstructured).Object
	n, _, _ := unstructured.NestedInt64(content, "spec", "n")
	done, _, _ := unstructured.NestedInt64(content, "status", "n")
	if done == n {
		return n, nil
	}
	const longest = 40 * time.Millisecond
	select { // Simulate work, so that faults interrupt running handlers.
	case <-time.After(rand.N(longest)):
	case <-ctx.Done():
		<-time.After(rand.N(longest)) // The call must be awaited.
		return n, context.Cause(ctx)
	}
	patch := fmt.Appendf(nil, `{"status":{"n":%d,"by":%q,"term":%d}}`, n, w.Process, term)
	_, err = w.client.Resource(id.GVR).Namespace(id.Namespace()).Patch(ctx, id.Name(),
		types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return n, err
}

// probeFence writes continuously, on the leader and on standbys. It uses the contexts of current and earlier terms, and
// one that has no term. On a standby, and after a term, only the fence prevents these writes.
func (w *worker) probeFence(ctx context.Context) {
	const (
		interval       = 50 * time.Millisecond
		requestTimeout = 2 * time.Second
	)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for n := 1; ; n++ {
		probeCtx := w.terms.random(context.WithoutCancel(ctx))
		patch := fmt.Appendf(nil, `{"data":{"n":"%d","by":%q,"lease":%q}}`, n, w.Process, w.leaseOf(probeCtx))
		requestCtx, cancel := context.WithTimeout(probeCtx, requestTimeout)
		// The result is logged by recordWrites.
		_, _ = w.probe.CoreV1().ConfigMaps(w.Namespace).Patch(requestCtx, w.Member,
			types.MergePatchType, patch, metav1.PatchOptions{})
		cancel()
		if ctx.Err() != nil {
			return // The last write was made after Run had returned.
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// termContexts are the contexts of the last two terms of each lease, without their cancellation.
type termContexts struct {
	mu       sync.Mutex // guards the fields below
	byLease  map[string][]context.Context
	contexts []context.Context // of all leases
}

func (t *termContexts) add(ctx context.Context, lease string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byLease == nil {
		t.byLease = map[string][]context.Context{}
	}
	last := append(t.byLease[lease], context.WithoutCancel(ctx))
	t.byLease[lease] = last[max(0, len(last)-2):]
	t.contexts = slices.Concat(slices.Collect(maps.Values(t.byLease))...)
}

// random returns one of the contexts, or ctx.
func (t *termContexts) random(ctx context.Context) context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := rand.IntN(len(t.contexts) + 1); n < len(t.contexts) {
		return t.contexts[n]
	}
	return ctx
}
