package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	ossignal "os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/test/bench/peers/informer"
)

// election contains the options of a replica's leader election.
type election struct {
	Lease                                string
	Duration, RenewDeadline, RetryPeriod time.Duration
	Shards                               int `json:",omitempty"`
}

func (e election) String() string {
	return fmt.Sprintf("%g/%g/%gs", e.Duration.Seconds(), e.RenewDeadline.Seconds(), e.RetryPeriod.Seconds())
}

// contenders are the kinds of replicas that are compared.
var contenders = []struct {
	name string
	run  func(*contender, context.Context) error
}{
	{"ours-warm", (*contender).runWarm},
	{"ours-cold", (*contender).runCold},
	{"dynamicinformer", (*contender).runPeer},
}

// beReplica runs a replica in this process until the process receives SIGTERM.
func beReplica(ctx context.Context, r *run) (measures, error) {
	ctx, stop := ossignal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	c := &contender{run: r}
	if err := json.Unmarshal([]byte(os.Getenv(electionEnv)), &c.election); err != nil {
		return nil, err
	}
	for _, kind := range contenders {
		if kind.name == r.Engine {
			return measures{}, kind.run(c, ctx)
		}
	}
	return nil, fmt.Errorf("unknown kind of replica %q", r.Engine)
}

// contender is a replica that is measured.
type contender struct {
	*run
	election election
	writer   dynamic.Interface
	term     atomic.Pointer[reconciled]
}

// reconciled records the reconciles of a term.
type reconciled struct {
	types map[schema.GroupVersionResource]*progress
	first func()
}

// report prints an event for the parent process.
func report(event string) { fmt.Println(event) }

// lead starts a term.
func (c *contender) lead() {
	t := &reconciled{types: map[schema.GroupVersionResource]*progress{},
		first: sync.OnceFunc(func() { report(eventFirst) })}
	var left atomic.Int64
	for i, gvr := range c.Fixture.types() {
		p := newProgress(c.Fixture.Objects[i])
		done := p.done
		left.Add(1)
		p.done = func() {
			done()
			if left.Add(-1) == 0 {
				report(eventAll)
			}
		}
		t.types[gvr] = p
	}
	c.term.Store(t)
	report(eventLeads)
}

// handle records a reconcile of an object. If the object belongs to the first type, handle also writes to the object.
func (c *contender) handle(ctx context.Context, gvr schema.GroupVersionResource, key string) error {
	t := c.term.Load()
	t.first()
	if gvr == resourceOf(c.Fixture.Group, 0) {
		_, err := c.writer.Resource(gvr).Namespace(namespace).Patch(ctx, key[strings.IndexByte(key, '/')+1:],
			types.MergePatchType,
			[]byte(`{"status":{"n":1}}`), metav1.PatchOptions{}, "status")
		if err != nil {
			return err
		}
		report(eventWrote)
	}
	t.types[gvr].handler(key)
	return nil
}

// runWarm also runs the watches while the replica is a standby.
func (c *contender) runWarm(ctx context.Context) error { return c.runOurs(ctx, true) }

// runCold runs the watches only while leading.
func (c *contender) runCold(ctx context.Context) error { return c.runOurs(ctx, false) }

func (c *contender) runOurs(ctx context.Context, warm bool) error {
	e := c.election
	r, err := replica.New(logr.Discard(), c.config, replica.Options{
		LeaseName: e.Lease, LeaseNamespace: namespace,
		LeaseDuration: e.Duration, RenewDeadline: e.RenewDeadline, RetryPeriod: e.RetryPeriod,
	})
	if err != nil {
		return err
	}
	if c.writer, err = dynamic.NewForConfig(r.FencedConfig()); err != nil {
		return err
	}
	engine, err := dynamiccontroller.NewForConfig(logr.Discard(), dynamiccontroller.Config{Workers: workers}, c.config)
	if err != nil {
		return err
	}
	for _, gvr := range c.Fixture.types() {
		handler := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			return c.handle(ctx, id.GVR, id.NamespacedKey)
		}
		if err := engine.StartServingGVK(ctx, gvr, handler); err != nil {
			return err
		}
	}
	if warm {
		err = r.RegisterWithoutLeaderElection("watches", replica.RunFunc(engine.RunWatches))
	}
	err = errors.Join(err, r.Register("engine", replica.RunFunc(func(ctx context.Context) error {
		c.lead()
		return engine.Run(ctx)
	}), replica.ScopeLeader))
	if err != nil {
		return err
	}
	go standBy(ctx, func() bool { return r.Status().Leader != "" && (!warm || engine.AllInformerHaveSynced()) })
	return r.Run(ctx)
}

// runPeer runs a replica that uses only client-go. The engine starts when the lease is acquired, and the process exits
// when the lease is lost.
func (c *contender) runPeer(ctx context.Context) error {
	e := c.election
	clients, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		return err
	}
	c.writer = c.client
	id := strconv.Itoa(os.Getpid())
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: e.Lease}, Client: clients.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: id},
		},
		LeaseDuration: e.Duration, RenewDeadline: e.RenewDeadline, RetryPeriod: e.RetryPeriod, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				c.lead()
				engine := informer.New(c.client, workers)
				for _, gvr := range c.Fixture.types() {
					_ = engine.Start(ctx, gvr, func(key string) { _ = c.handle(ctx, gvr, key) }) // Each type is started only once.
				}
				_ = engine.Run(ctx) // Run never fails.
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	go standBy(ctx, func() bool { return elector.GetLeader() != "" })
	elector.Run(ctx)
	return nil
}

// standBy reports when the replica has become a standby.
func standBy(ctx context.Context, isReady func() bool) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !isReady() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
	report(eventStandby)
}
