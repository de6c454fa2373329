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

// workerEnv holds a job in JSON. A test binary that finds it is a replica instead of a test.
const workerEnv = "E2E_WORKER"

// job is what a replica is told.
type job struct {
	Who        string // in the log
	Member     string // names what it probes
	Kubeconfig string
	Server     string // the API server's address: a proxy's
	Log        string
	Namespace  string // of the lease and of all objects
	Lease      string
}

// The timings of the election.
const (
	leaseDuration = 3 * time.Second
	renewDeadline = 2 * time.Second
	retryPeriod   = 500 * time.Millisecond
)

// work is the whole of a replica's process.
func work(spec string) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the test has gone
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
	client dynamic.Interface    // fenced
	probe  kubernetes.Interface // fenced
}

func doJob(ctx context.Context, spec string) error {
	w := &worker{}
	if err := json.Unmarshal([]byte(spec), &w.job); err != nil {
		return err
	}
	var err error
	if w.log, err = history.Open(w.Log, w.Who); err != nil {
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

	probes, endProbes := context.WithCancel(context.WithoutCancel(ctx))
	var probing sync.WaitGroup
	probing.Go(func() { w.keepProbing(probes) })
	err = r.Run(ctx)
	endProbes()
	probing.Wait()
	exit := history.Event{Kind: history.Exit}
	if err != nil {
		exit.Error = err.Error()
	}
	w.log.Add(exit)
	return err
}

// replica joins the engine and a replica as any program would, with ears everywhere.
func (w *worker) replica(config *rest.Config) (*replica.Replica, error) {
	log := w.logger()
	heard := rest.CopyConfig(config)
	heard.Wrap(w.hearLease)
	r, err := replica.New(heard, replica.Options{
		LeaseName: w.Lease, LeaseNamespace: w.Namespace, Identity: w.Who,
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		Log: log.WithName("replica"),
	})
	if err != nil {
		return nil, err
	}
	fenced := w.hearWrites(r.FencedConfig())
	if w.client, err = dynamic.NewForConfig(fenced); err != nil {
		return nil, err
	}
	if w.probe, err = kubernetes.NewForConfig(fenced); err != nil {
		return nil, err
	}
	// What fails is tried again soon: the API server is only ever away for seconds.
	tuned := dynamiccontroller.Config{QueueMaxRetries: -1, MaxRetryDelay: 500 * time.Millisecond}
	if w.engine, err = dynamiccontroller.NewForConfig(log.WithName("engine"), tuned, config); err != nil {
		return nil, err
	}
	err = w.engine.StartServingGVK(context.Background(), widgets, w.handle, dynamiccontroller.WithNamespace(w.Namespace))
	return r, errors.Join(err,
		r.RegisterWithoutLeaderElection("watches", replica.RunFunc(w.watch)),
		r.Register("engine", replica.RunFunc(w.lead)))
}

func (w *worker) logger() logr.Logger {
	return funcr.New(func(prefix, args string) {
		fmt.Fprintf(os.Stderr, "%.6f %s %s\n", time.Duration(history.Now()).Seconds(), prefix, args)
	}, funcr.Options{Verbosity: 1})
}

// watch is the per-replica half.
func (w *worker) watch(ctx context.Context) error {
	w.log.Add(history.Event{Kind: history.Watches})
	return w.engine.RunWatches(ctx)
}

// lead is the leading half.
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

// handle copies what the test wrote into an object's spec to its status, in no great hurry.
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
	select { // work of some length, so that faults find handlers at it
	case <-time.After(rand.N(longest)):
	case <-ctx.Done():
		return n, context.Cause(ctx)
	}
	patch := fmt.Appendf(nil, `{"status":{"n":%d,"by":%q,"term":%d}}`, n, w.Who, term)
	_, err = w.client.Resource(id.GVR).Namespace(id.Namespace()).Patch(ctx, id.Name(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return n, err
}

// keepProbing writes through the fence without pause, whether this replica leads or not and in no term's name: nothing but
// the fence is in its way.
func (w *worker) keepProbing(ctx context.Context) {
	const (
		pace    = 50 * time.Millisecond
		tooLong = 2 * time.Second
	)
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for n := 1; ; n++ {
		patch := fmt.Appendf(nil, `{"data":{"n":"%d","by":%q}}`, n, w.Who)
		one, cancel := context.WithTimeout(context.WithoutCancel(ctx), tooLong)
		// How it went is in the log.
		_, _ = w.probe.CoreV1().ConfigMaps(w.Namespace).Patch(one, w.Member, types.MergePatchType, patch, metav1.PatchOptions{})
		cancel()
		if ctx.Err() != nil {
			return // after the last try, when Run had returned
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}
