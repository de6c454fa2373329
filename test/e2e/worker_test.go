package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	Namespace  string // The namespace of the lease and of all objects.
	Lease      string
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
		LeaseName: w.Lease, LeaseNamespace: w.Namespace, Identity: w.Process,
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
	})
	if err != nil {
		return nil, err
	}
	fenced := w.recordWrites(r.FencedConfig())
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
	err = w.engine.StartServingGVK(context.Background(), widgets, w.handle,
		dynamiccontroller.WithNamespaces(w.Namespace))
	return r, errors.Join(err,
		r.RegisterWithoutLeaderElection("watches", replica.RunFunc(w.watch)),
		r.Register("engine", replica.RunFunc(w.lead)))
}

func (w *worker) logger() logr.Logger {
	return funcr.New(func(prefix, args string) {
		fmt.Fprintf(os.Stderr, "%.6f %s %s\n", time.Duration(history.Now()).Seconds(), prefix, args)
	}, funcr.Options{Verbosity: 1})
}

// watch runs on every replica.
func (w *worker) watch(ctx context.Context) error {
	w.log.Add(history.Event{Kind: history.Watches})
	return w.engine.RunWatches(ctx)
}

// lead runs on the leader.
func (w *worker) lead(ctx context.Context) error {
	term, _ := replica.Term(ctx)
	w.log.Add(history.Event{Kind: history.Leads, Term: term})
	defer context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); errors.Is(cause, replica.ErrLeaseLost) {
			w.log.Add(history.Event{Kind: history.Lost, Term: term, Error: cause.Error()})
		}
	})()
	err := w.engine.Run(ctx)
	w.log.Add(history.Event{Kind: history.Led, Term: term})
	return err
}

// handle logs the start and the end of a reconcile.
func (w *worker) handle(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	term, _ := replica.Term(ctx)
	w.log.Add(history.Event{Kind: history.Begin, Term: term, Object: id.Name()})
	n, err := w.reconcile(ctx, id, term)
	end := history.Event{Kind: history.End, Term: term, Object: id.Name(), N: n}
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
	if err != nil {
		return 0, err
	}
	content := object.(*unstructured.Unstructured).Object
	n, _, _ := unstructured.NestedInt64(content, "spec", "n")
	done, _, _ := unstructured.NestedInt64(content, "status", "n")
	if done == n {
		return n, nil
	}
	const longest = 20 * time.Millisecond
	select { // Simulate work, so that faults interrupt running handlers.
	case <-time.After(rand.N(longest)):
	case <-ctx.Done():
		return n, context.Cause(ctx)
	}
	patch := fmt.Appendf(nil, `{"status":{"n":%d,"by":%q,"term":%d}}`, n, w.Process, term)
	_, err = w.client.Resource(id.GVR).Namespace(id.Namespace()).Patch(ctx, id.Name(),
		types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return n, err
}

// probeFence writes continuously, on the leader and on standbys, with a context that has no term. On a standby, only
// the fence prevents these writes.
func (w *worker) probeFence(ctx context.Context) {
	const (
		interval       = 50 * time.Millisecond
		requestTimeout = 2 * time.Second
	)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for n := 1; ; n++ {
		patch := fmt.Appendf(nil, `{"data":{"n":"%d","by":%q}}`, n, w.Process)
		requestCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
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
