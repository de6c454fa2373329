package replica

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/dynamic-controller/engine/internal/writes"
)

// fleetRig is a replica with shards, and fake Leases.
type fleetRig struct {
	*Replica
	t         testing.TB
	name      string
	client    *fakeLeaseClient
	log       *logBuffer
	transport *fakeTransport
	http      *http.Client
	ahead     atomic.Int64                  // the offset of the wall clock
	linger    atomic.Int64                  // the time that a runnable of a shard takes to return
	warmUp    atomic.Int64                  // the time that a shard takes to sync
	stuck     atomic.Pointer[chan struct{}] // if not nil, HasSyncedShard waits until the channel is closed

	cancel context.CancelFunc
	result func() error // waits for Run
}

// shardRuns records which replicas run which shards, and that no two do at the same time.
type shardRuns struct {
	mu         sync.Mutex // guards the fields below
	running    map[int]string
	warm       map[string]map[int]time.Time
	runs       []string // "shard replica", in the order of their beginnings
	violations []string
	ended      map[int]time.Time
	gaps       map[int]time.Duration // the longest time for which nobody ran a shard after it was first run
}

func newShardRuns() *shardRuns {
	return &shardRuns{
		running: map[int]string{}, warm: map[string]map[int]time.Time{}, ended: map[int]time.Time{},
		gaps: map[int]time.Duration{},
	}
}

func (r *shardRuns) begin(shard int, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if other, ok := r.running[shard]; ok {
		r.violations = append(r.violations, fmt.Sprintf("shard %d runs on %s and %s", shard, other, name))
	}
	if _, ok := r.warm[name][shard]; !ok {
		r.violations = append(r.violations, fmt.Sprintf("shard %d runs on %s, which does not keep it warm", shard, name))
	}
	if at, ok := r.ended[shard]; ok {
		r.gaps[shard] = max(r.gaps[shard], time.Since(at))
	}
	r.running[shard] = name
	r.runs = append(r.runs, fmt.Sprintf("%d %s", shard, name))
}

func (r *shardRuns) end(shard int, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running[shard] == name {
		delete(r.running, shard)
		r.ended[shard] = time.Now()
	}
}

// resetGaps forgets the gaps so far.
func (r *shardRuns) resetGaps() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.gaps)
}

// longestGap returns the longest time for which nobody ran a shard between two runs.
func (r *shardRuns) longestGap() (longest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, gap := range r.gaps {
		longest = max(longest, gap)
	}
	return longest
}

// led returns the number of shards that each replica runs.
func (r *shardRuns) led() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	led := map[string]int{}
	for _, name := range r.running {
		led[name]++
	}
	return led
}

func (r *shardRuns) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.running)
}

// of returns the replica that runs a shard, or an empty string.
func (r *shardRuns) of(shard int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[shard]
}

// shardsOf returns the shards that a replica runs.
func (r *shardRuns) shardsOf(name string) (shards []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for shard, runner := range r.running {
		if runner == name {
			shards = append(shards, shard)
		}
	}
	slices.Sort(shards)
	return shards
}

func (r *shardRuns) warmOf(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.warm[name])
}

func (r *shardRuns) check(t testing.TB) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.violations {
		t.Error(v)
	}
}

func shardOptions(count int) func(*Options) { return func(o *Options) { o.Shards = count } }

func newFleetRig(t testing.TB, s *fakeLeases, runs *shardRuns, name string, change ...func(*Options)) *fleetRig {
	r := &fleetRig{
		t: t, name: name, client: &fakeLeaseClient{server: s}, log: &logBuffer{}, transport: &fakeTransport{},
	}
	o := testOptions()
	o.Identity, o.log, o.Shards = name, r.log.logger(), 8
	for _, c := range change {
		c(&o)
	}
	backend := backend{
		lease: func(_ *rest.Config, o Options, _ *writes.Ledger) (resourcelock.Interface, *connections, error) {
			return &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: o.LeaseNamespace, Name: o.LeaseName},
				Client:     r.client,
				LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
			}, nil, nil
		},
		fleet: func(*rest.Config, Options) (*fleetClients, error) {
			return &fleetClients{requests: r.client, watches: r.client}, nil
		},
	}
	clock := clock{wall: func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }}
	var err error
	r.Replica, err = newReplica(&rest.Config{Host: "http://api", Transport: r.transport}, o, backend, clock)
	wantNoError(t, err)
	r.http, err = rest.HTTPClientFor(r.FencedConfig())
	wantNoError(t, err)
	wantNoError(t, r.Register("work", RunFunc(func(ctx context.Context) error {
		index, _ := Shard(ctx)
		time.Sleep(time.Millisecond) // until the goroutine of the warm shard has run
		runs.begin(index, name)
		<-ctx.Done()
		linger := time.After(time.Duration(r.linger.Load()))
		select {
		case <-ctx.Value(termKey{}).(*term).over: // the runnable ignores its context, and only the fence stops it
			runs.end(index, name)
			<-linger
		case <-linger:
			runs.end(index, name)
		}
		return nil
	}), ScopeShard))
	wantNoError(t, r.Register("watches", &warmRunnable{runs, r}, ScopeWarmShard))
	return r
}

// warmRunnable keeps shards warm.
type warmRunnable struct {
	runs *shardRuns
	rig  *fleetRig
}

func (w *warmRunnable) Run(ctx context.Context) error {
	index, _ := Shard(ctx)
	r := w.runs
	r.mu.Lock()
	if r.warm[w.rig.name] == nil {
		r.warm[w.rig.name] = map[int]time.Time{}
	}
	r.warm[w.rig.name][index] = time.Now()
	r.mu.Unlock()
	<-ctx.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running[index] == w.rig.name {
		r.violations = append(r.violations, fmt.Sprintf("shard %d cools down on %s while it runs", index, w.rig.name))
	}
	delete(r.warm[w.rig.name], index)
	return nil
}

func (w *warmRunnable) HasSyncedShard(index, _ int) bool {
	if stuck := w.rig.stuck.Load(); stuck != nil {
		<-*stuck
	}
	w.runs.mu.Lock()
	defer w.runs.mu.Unlock()
	since, ok := w.runs.warm[w.rig.name][index]
	return ok && time.Since(since) >= time.Duration(w.rig.warmUp.Load())
}

func (r *fleetRig) start() *fleetRig {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	r.cancel, r.result = cancel, sync.OnceValue(func() error { return <-result })
	go func() { result <- r.Run(ctx) }()
	r.t.Cleanup(func() { _ = r.stop() }) // no goroutine may outlive a synctest bubble
	return r
}

func (r *fleetRig) stop() error {
	r.cancel()
	return r.result()
}

// crash stops the replica without releasing anything.
func (r *fleetRig) crash() {
	r.client.down.Store(true)
	_ = r.stop()
}

func (r *fleetRig) write(ctx context.Context) error { return send(ctx, r.http, http.MethodPost, nil) }

// startFleet starts replicas with these names.
func startFleet(t testing.TB, s *fakeLeases, runs *shardRuns, names string, change ...func(*Options)) []*fleetRig {
	var rigs []*fleetRig
	for _, name := range strings.Fields(names) {
		rigs = append(rigs, newFleetRig(t, s, runs, name, change...).start())
	}
	return rigs
}

// isBalanced reports whether each replica runs the same number of shards.
func isBalanced(runs *shardRuns, shards int, names ...string) func() bool {
	return func() bool {
		led := runs.led()
		for _, name := range names {
			if n := led[name]; n < shards/len(names) || n > (shards+len(names)-1)/len(names) {
				return false
			}
		}
		return runs.count() == shards
	}
}

const (
	// maxFleetStart is the longest time from the start of a fleet until all shards are led.
	maxFleetStart = 10 * testLeaseDuration
	// maxShardTakeover is the longest time from the crash of a shard's leader until another replica leads the shard.
	maxShardTakeover = testLeaseDuration + 5*testRetryPeriod
)

// setHolder changes the holder of a Lease as a user would.
func (s *fakeLeases) setHolder(name, holder string) {
	s.edit(name, func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = &holder })
}

// contextOfShard is the context of a runnable for a shard.
type contextOfShard struct {
	ctx  context.Context //nolint:containedctx // the test uses it after the runnable has returned
	name string
}

// contextOfShards returns a runnable that passes its context to a channel.
func contextOfShards(to chan<- contextOfShard) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		index, _ := Shard(ctx)
		to <- contextOfShard{ctx, fmt.Sprint(index)}
		<-ctx.Done()
		return nil
	}
}

// plainRig is a replica without shards.
type plainRig struct {
	*Replica
	t      testing.TB
	client *fakeLeaseClient
	cancel context.CancelFunc
	result func() error
}

// newPlain returns a replica without shards, and its leader-gated runnable.
func newPlain(t testing.TB, s *fakeLeases, name string) (*plainRig, *worker) {
	r := &plainRig{t: t, client: &fakeLeaseClient{server: s}}
	o := testOptions()
	o.Identity = name
	backend := backend{lease: func(_ *rest.Config, o Options, ledger *writes.Ledger) (
		resourcelock.Interface, *connections, error,
	) {
		return &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: o.LeaseNamespace, Name: o.LeaseName},
			Client:     noteIn(r.client, o, o.log, ledger),
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
		}, nil, nil
	}}
	var err error
	r.Replica, err = newReplica(&rest.Config{Host: "http://api"}, o, backend, clock{})
	wantNoError(t, err)
	w := &worker{}
	wantNoError(t, r.Register("work", w, ScopeLeader))
	return r, w
}

func (r *plainRig) start() {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	r.cancel, r.result = cancel, sync.OnceValue(func() error { return <-result })
	go func() { result <- r.Run(ctx) }()
	r.t.Cleanup(func() { _ = r.stop() })
}

func (r *plainRig) stop() error {
	r.cancel()
	return r.result()
}

// reconnect ends the faults of requests.
func (r *fleetRig) reconnect() {
	r.client.down.Store(false)
	r.client.before.Store(nil)
	r.client.after.Store(false)
}

// loseResponses makes requests take effect, but fail.
func (r *fleetRig) loseResponses() { r.client.after.Store(true) }

// failFor makes requests for some Leases fail.
func (r *fleetRig) failFor(fails func(name string) bool) {
	before := func(_ context.Context, _, name string) error {
		if fails(name) {
			return errDown
		}
		return nil
	}
	r.client.before.Store(&before)
}
