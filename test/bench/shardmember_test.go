package bench

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	ossignal "os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/internal/shards"
)

const scenarioMember = "member"

func init() { scenarios[scenarioMember] = beMember }

// shardLoad is the work of the handlers.
type shardLoad struct {
	Sleep      time.Duration `json:",omitempty"` // How long a call sleeps.
	Burn       int           `json:",omitempty"` // How often a call hashes a block; see burn.
	Every      time.Duration `json:",omitempty"` // Each object is reconciled again after this time.
	Again      bool          `json:",omitempty"` // Each object is reconciled again at once.
	Processors int           `json:",omitempty"` // GOMAXPROCS. Zero selects the number of CPUs.
}

// work does the work of one call.
func (l shardLoad) work(ctx context.Context) error {
	burn(l.Burn)
	if l.Sleep == 0 {
		return nil
	}
	timer := time.NewTimer(l.Sleep)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// burn hashes a block the given number of times. The work is the same on a busy machine, unlike a loop that ends at a
// given time.
func burn(times int) {
	var block [1024]byte
	for range times {
		sum := sha256.Sum256(block[:])
		copy(block[:], sum[:])
	}
}

// memberCommand is a line that the benchmark writes to a member.
type memberCommand struct {
	Do      string
	Load    shardLoad `json:",omitzero"`
	Enqueue int       `json:",omitempty"` // The number of objects of each type that are enqueued.
}

const (
	commandLoad      = "load"      // Change the load.
	commandWork      = "work"      // Change the load, and reply when all enqueued objects have been reconciled.
	commandCount     = "count"     // Reply with the numbers of calls.
	commandFootprint = "footprint" // Reply with the memory and the watches.
)

// memberMessage is a line that a member prints.
type memberMessage struct {
	Kind     string
	At       time.Time
	Shard    int      `json:",omitempty"`
	Led      []int    `json:",omitempty"` // The shards that the member leads.
	Warm     []int    `json:",omitempty"` // The shards that it keeps warm.
	Calls    int64    `json:",omitempty"` // The calls that have returned since the start of the process.
	Repeated int64    `json:",omitempty"` // Those that neither a new term nor the load required.
	Waiting  int      `json:",omitempty"` // The length of the queue.
	Measures measures `json:",omitempty"`
}

const (
	messageHolds = "holds" // Other shards are led or kept warm.
	messageFirst = "first" // The first call of a term has begun.
	messageEnded = "ended" // The run of a term has returned. The replica then releases the Lease.
	messageList  = "list"  // A list of a type of the shard was requested.
	messageReply = "reply" // A command has been performed.
)

// shardMember is a replica whose types are divided into shards.
type shardMember struct {
	*run
	shards  int // As in replica.Options. Zero registers the engine as without shards.
	before  footprint
	engine  *dynamiccontroller.DynamicController
	replica *replica.Replica
	watches atomic.Int64 // Open watch requests.

	load    atomic.Pointer[shardLoad]
	pending atomic.Int64  // Calls until the end of commandWork.
	worked  chan struct{} // Receives when pending has reached zero.

	calls, repeated atomic.Int64
	terms           [shards.Max]atomic.Pointer[shardTerm]

	printing sync.Mutex
}

// shardTerm records the calls of a term.
type shardTerm struct {
	first func()
	mu    sync.Mutex
	last  map[dynamiccontroller.ObjectIdentifiers]time.Time
}

// beMember runs a member until the process receives SIGTERM.
func beMember(ctx context.Context, r *run) (measures, error) {
	ctx, stop := ossignal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	var e election
	if err := json.Unmarshal([]byte(os.Getenv(electionEnv)), &e); err != nil {
		return nil, err
	}
	m := &shardMember{run: r, shards: e.Shards, worked: make(chan struct{}, 1), before: takeFootprint()}
	m.load.Store(&r.Load)
	return measures{}, m.serve(ctx, e)
}

func (m *shardMember) serve(ctx context.Context, e election) (err error) {
	m.replica, err = replica.New(logr.Discard(), m.config, replica.Options{
		LeaseName: e.Lease, LeaseNamespace: namespace, Shards: e.Shards,
		LeaseDuration: e.Duration, RenewDeadline: e.RenewDeadline, RetryPeriod: e.RetryPeriod,
	})
	if err != nil {
		return err
	}
	counted := rest.CopyConfig(m.config)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper { return countingTransport{m, next} })
	config := dynamiccontroller.Config{Workers: workers}
	m.engine, err = dynamiccontroller.NewForConfig(logr.Discard(), config, counted)
	if err != nil {
		return err
	}
	for _, gvr := range m.Fixture.types() {
		full := dynamiccontroller.WithCache(dynamiccontroller.CacheFull)
		if err := m.engine.StartServingGVK(ctx, gvr, m.handle, full); err != nil {
			return err
		}
	}
	if m.shards == 0 {
		err = errors.Join(
			m.replica.RegisterWithoutLeaderElection("watches", replica.RunFunc(m.engine.RunWatches)),
			m.replica.Register("engine", replica.RunFunc(m.lead), replica.ScopeLeader),
		)
	} else {
		err = errors.Join(
			m.replica.Register("watches", m.engine.Watches(), replica.ScopeWarmShard),
			m.replica.Register("engine", replica.RunFunc(m.lead), replica.ScopeShard),
		)
	}
	err = errors.Join(err,
		m.replica.RegisterWithoutLeaderElection("holds", replica.RunFunc(m.printHolds)),
		m.replica.RegisterWithoutLeaderElection("commands", replica.RunFunc(m.obey)),
	)
	if err != nil {
		return err
	}
	return m.replica.Run(ctx)
}

// print prints a message for the benchmark.
func (m *shardMember) print(message memberMessage) {
	if message.At.IsZero() {
		message.At = time.Now()
	}
	line, err := json.Marshal(message)
	if err != nil {
		panic(err) // A message contains only numbers and strings.
	}
	m.printing.Lock()
	defer m.printing.Unlock()
	fmt.Println(string(line))
}

// lead runs the engine for a term of a shard.
func (m *shardMember) lead(ctx context.Context) error {
	shard, _ := replica.Shard(ctx)
	m.terms[shard].Store(&shardTerm{
		last:  map[dynamiccontroller.ObjectIdentifiers]time.Time{},
		first: sync.OnceFunc(func() { m.print(memberMessage{Kind: messageFirst, Shard: shard}) }),
	})
	err := m.engine.Run(ctx)
	m.print(memberMessage{Kind: messageEnded, Shard: shard, Repeated: m.repeated.Load()})
	return err
}

func (m *shardMember) handle(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	shard, _ := replica.Shard(ctx)
	load := m.load.Load()
	if m.terms[shard].Load().isRepeated(id, load.Every) {
		m.repeated.Add(1)
	}
	if err := load.work(ctx); err != nil {
		return err
	}
	m.calls.Add(1)
	if m.pending.Add(-1) == 0 {
		m.worked <- struct{}{}
	}
	switch {
	case load.Again:
		return dynamiccontroller.RequeueAfter(1) // a nanosecond, so without a backoff
	case load.Every > 0:
		return dynamiccontroller.RequeueAfter(load.Every)
	}
	return nil
}

// isRepeated records a call, and reports whether it was required neither by the term nor by a load that reconciles each
// object again after the given time. The benchmark changes no objects.
func (t *shardTerm) isRepeated(id dynamiccontroller.ObjectIdentifiers, every time.Duration) bool {
	t.first()
	if every == 0 {
		return false
	}
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	last, called := t.last[id]
	t.last[id] = now
	return called && now.Sub(last) < every
}

// printHolds prints which shards are led and kept warm, whenever this changes.
func (m *shardMember) printHolds(ctx context.Context) error {
	var last memberMessage
	for tick := time.Tick(10 * time.Millisecond); ; {
		next := m.holds()
		if !slices.Equal(next.Led, last.Led) || !slices.Equal(next.Warm, last.Warm) {
			m.print(next)
			last = next
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return nil
		}
	}
}

func (m *shardMember) holds() memberMessage {
	message, status := memberMessage{Kind: messageHolds}, m.replica.Status()
	if m.shards < 2 {
		status.Shards = []replica.ShardStatus{{Leading: status.Leading, Warm: m.engine.AllInformerHaveSynced()}}
	}
	for i, s := range status.Shards {
		if s.Leading {
			message.Led = append(message.Led, i)
		}
		if s.Warm {
			message.Warm = append(message.Warm, i)
		}
	}
	return message
}

// obey performs the commands of the benchmark.
func (m *shardMember) obey(ctx context.Context) error {
	for {
		select {
		case line := <-commands:
			var c memberCommand
			if err := json.Unmarshal([]byte(line), &c); err != nil {
				return err
			}
			m.perform(ctx, c)
		case <-ctx.Done():
			return nil
		}
	}
}

func (m *shardMember) perform(ctx context.Context, c memberCommand) {
	reply := memberMessage{Kind: messageReply}
	switch c.Do {
	case commandLoad, commandWork:
		runtime.GOMAXPROCS(c.Load.Processors)
		if c.Load.Processors == 0 {
			runtime.GOMAXPROCS(runtime.NumCPU())
		}
		ids := m.ledObjects(c.Enqueue)
		m.pending.Store(0)
		if c.Do == commandWork {
			m.pending.Store(int64(len(ids)))
		}
		m.load.Store(&c.Load)
		m.engine.Enqueue(ids...)
		if c.Do == commandWork && len(ids) > 0 {
			select {
			case <-m.worked:
			case <-ctx.Done():
				return
			}
		}
	case commandCount:
		reply.Waiting = m.engine.QueueLen()
	case commandFootprint:
		watches := m.watches.Load()
		now := collectGarbage()
		reply.Measures = append(now.since(m.before, ""), measure{"watches", float64(watches)})
	}
	reply.At, reply.Calls, reply.Repeated = time.Now(), m.calls.Load(), m.repeated.Load()
	m.print(reply)
}

// ledObjects returns the first objects of each type of the shards that the member leads.
func (m *shardMember) ledObjects(perType int) (ids []dynamiccontroller.ObjectIdentifiers) {
	led, count := m.holds().Led, max(1, m.shards)
	for i, gvr := range m.Fixture.types() {
		if !slices.Contains(led, shards.Of(gvr.GroupResource(), count)) {
			continue
		}
		for n := range min(perType, m.Fixture.Objects[i]) {
			ids = append(ids, dynamiccontroller.ObjectIdentifiers{
				GVR: gvr, NamespacedKey: namespace + "/" + m.Fixture.name(n),
			})
		}
	}
	return ids
}

// countingTransport counts the open watches of a member, and reports its lists.
type countingTransport struct {
	member *shardMember
	next   http.RoundTripper
}

func (t countingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	gr := schema.GroupResource{Group: t.member.Fixture.Group}
	// The path of a list or watch of all namespaces is /apis/group/version/resource.
	parts := strings.Split(request.URL.Path, "/")
	if len(parts) != 5 || parts[2] != gr.Group {
		return t.next.RoundTrip(request)
	}
	gr.Resource = parts[4]
	isWatch := request.URL.Query().Get("watch") != ""
	if !isWatch || request.URL.Query().Get("sendInitialEvents") == "true" {
		t.member.print(memberMessage{Kind: messageList, Shard: shards.Of(gr, max(1, t.member.shards))})
	}
	response, err := t.next.RoundTrip(request)
	if err == nil && isWatch && response.StatusCode == http.StatusOK {
		t.member.watches.Add(1)
		response.Body = &watchBody{ReadCloser: response.Body, closed: sync.OnceFunc(func() { t.member.watches.Add(-1) })}
	}
	return response, err
}

// watchBody is the body of the response to a watch.
type watchBody struct {
	io.ReadCloser
	closed func()
}

func (b *watchBody) Close() error {
	b.closed()
	return b.ReadCloser.Close()
}
