package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// shardFleet is a set of replicas that divide the types among them. Each runs in a process of its own.
type shardFleet struct {
	config   *rest.Config
	job      job
	election election
	members  []*memberProcess // Including those that have ended.
}

// memberProcess is the process of a replica in a fleet.
type memberProcess struct {
	*replicaProcess
	replies chan memberMessage

	// These fields are used only by the goroutine of the benchmark.
	terminated time.Time // The time of the signal that ended the process.
	repeated   int64     // The number of repeated calls, when it was last read.

	mu    sync.Mutex // Guards the fields below.
	log   []memberMessage
	holds memberMessage // The last message of this kind.
}

// newShardFleet returns a fleet without replicas. Without shards, which are zero, the replicas have one leader.
func newShardFleet(config *rest.Config, j job, e election, count int) *shardFleet {
	j.Scenario = scenarioMember
	e.Lease, e.Shards = fmt.Sprintf("bench-%d", time.Now().UnixNano()), count
	return &shardFleet{config: config, job: j, election: e}
}

// start starts replicas.
func (f *shardFleet) start(ctx context.Context, n int) error {
	for range n {
		m := &memberProcess{replies: make(chan memberMessage, 1)}
		p, err := startReplica(ctx, f.job, f.election, m.receive)
		if err != nil {
			return err
		}
		m.replicaProcess = p
		f.members = append(f.members, m)
	}
	return nil
}

// receive records a message of the process.
func (m *memberProcess) receive(line string) {
	var message memberMessage
	if err := json.Unmarshal([]byte(line), &message); err != nil {
		panic(err) // The process runs the same binary.
	}
	if message.Kind == messageReply {
		m.replies <- message
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = append(m.log, message)
	if message.Kind == messageHolds {
		m.holds = message
	}
}

func (m *memberProcess) held() memberMessage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.holds
}

// do sends a command and returns the reply.
func (m *memberProcess) do(ctx context.Context, c memberCommand) (memberMessage, error) {
	line, err := json.Marshal(c)
	if err != nil {
		return memberMessage{}, err
	}
	if _, err := fmt.Fprintln(m.in, string(line)); err != nil {
		return memberMessage{}, err
	}
	select {
	case reply := <-m.replies:
		return reply, nil
	case <-m.exited:
		return memberMessage{}, fmt.Errorf("the replica exited before command %q: %s", c.Do, lastLines(m.errs.String()))
	case <-ctx.Done():
		return memberMessage{}, fmt.Errorf("wait for command %q: %w", c.Do, context.Cause(ctx))
	}
}

// running returns the replicas that were not terminated.
func (f *shardFleet) running() (members []*memberProcess) {
	for _, m := range f.members {
		if m.terminated.IsZero() {
			members = append(members, m)
		}
	}
	return members
}

// do sends a command to all replicas at the same time and returns their replies.
func (f *shardFleet) do(ctx context.Context, c memberCommand) ([]memberMessage, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errTimeout)
	defer cancel()
	members := f.running()
	replies := make([]memberMessage, len(members))
	var all errgroup.Group
	for i, m := range members {
		all.Go(func() (err error) {
			replies[i], err = m.do(ctx, c)
			return err
		})
	}
	return replies, all.Wait()
}

// total returns the sum of a number in all replies.
func total(replies []memberMessage, number func(memberMessage) float64) (sum float64) {
	for _, r := range replies {
		sum += number(r)
	}
	return sum
}

const (
	settledPeriods    = 4  // Multiples of RetryPeriod without a change, in a fleet that is balanced.
	unbalancedPeriods = 24 // The same in a fleet that is not. The planner waits for two LeaseDurations, which are 12.
)

// settle waits until each shard has a leader and a standby, and nothing has changed for some time.
func (f *shardFleet) settle(ctx context.Context) error {
	return f.eventually(ctx, "the fleet has settled", func(led []int, unchanged time.Duration) bool {
		periods := settledPeriods
		if slices.Max(led)-slices.Min(led) > 1 {
			periods = unbalancedPeriods
		}
		return unchanged > time.Duration(periods)*f.election.RetryPeriod
	})
}

// cover waits until each shard has a leader and a standby.
func (f *shardFleet) cover(ctx context.Context) error {
	return f.eventually(ctx, "each shard has two replicas", func(_ []int, unchanged time.Duration) bool {
		return unchanged > f.election.RetryPeriod
	})
}

// eventually waits until each shard has a leader and a standby, and a condition holds. Its arguments are the numbers of
// shards that the replicas lead, and the time since something has changed, or since the call.
func (f *shardFleet) eventually(ctx context.Context, goal string, ok func([]int, time.Duration) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errTimeout)
	defer cancel()
	count := max(1, f.election.Shards)
	members, began := f.running(), time.Now()
	var last []memberMessage
	err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
		last = last[:0]
		var led []int
		leaders, copies, changed := make([]int, count), make([]int, count), began
		for _, m := range members {
			select {
			case <-m.exited:
				return false, fmt.Errorf("a replica exited: %s", lastLines(m.errs.String()))
			default:
			}
			holds := m.held()
			last = append(last, holds)
			led = append(led, len(holds.Led))
			for _, i := range holds.Led {
				leaders[i]++
			}
			for _, i := range holds.Warm {
				copies[i]++
			}
			changed = slices.MaxFunc([]time.Time{changed, holds.At}, time.Time.Compare)
		}
		for i := range count {
			if leaders[i] != 1 || copies[i] != min(2, len(members)) {
				return false, nil
			}
		}
		return ok(led, time.Since(changed)), nil
	})
	if err != nil {
		return fmt.Errorf("wait until %s: %w; shards: %v", goal, errors.Join(err, context.Cause(ctx)), last)
	}
	return nil
}

// rest waits until all handlers have returned.
func (f *shardFleet) rest(ctx context.Context) error {
	if _, err := f.do(ctx, memberCommand{Do: commandLoad}); err != nil {
		return err
	}
	last := -1.0
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			replies, err := f.do(ctx, memberCommand{Do: commandCount})
			waiting := total(replies, func(r memberMessage) float64 { return float64(r.Waiting) })
			calls := total(replies, func(r memberMessage) float64 { return float64(r.Calls) })
			isDone := waiting == 0 && calls == last
			last = calls
			return isDone, err
		})
}

// terminate sends a signal to a replica and waits until it has exited.
func (m *memberProcess) terminate(ctx context.Context, sig syscall.Signal) error {
	var led []int
	if sig == syscall.SIGKILL {
		led = m.held().Led
	}
	m.terminated = time.Now()
	if err := m.cmd.Process.Signal(sig); err != nil {
		return err
	}
	if err := await(ctx, m.exited, time.Minute); err != nil {
		return fmt.Errorf("a replica has not exited: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, shard := range led { // A replica that is killed prints nothing.
		m.log = append(m.log, memberMessage{Kind: messageEnded, At: m.terminated, Shard: shard})
	}
	return nil
}

// end terminates all replicas and deletes their Leases.
func (f *shardFleet) end(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var all errgroup.Group
	for _, m := range f.running() {
		all.Go(func() error {
			err := m.terminate(ctx, syscall.SIGTERM)
			if err != nil {
				m.kill()
			}
			if err == nil && !m.cmd.ProcessState.Success() {
				err = fmt.Errorf("a replica ended with %s: %s", m.cmd.ProcessState, lastLines(m.errs.String()))
			}
			return err
		})
	}
	err := all.Wait()
	clients, failure := kubernetes.NewForConfig(f.config)
	if failure != nil {
		return errors.Join(err, failure)
	}
	leases := clients.CoordinationV1().Leases(namespace)
	list, failure := leases.List(ctx, metav1.ListOptions{})
	if failure != nil {
		return errors.Join(err, failure)
	}
	for _, lease := range list.Items {
		if strings.HasPrefix(lease.Name, f.election.Lease) {
			err = errors.Join(err, leases.Delete(ctx, lease.Name, metav1.DeleteOptions{}))
		}
	}
	return err
}

// handover is a change of the leader of a shard that has types.
type handover struct {
	shard int
	ended time.Time      // The run of the last leader has returned, or the last leader was killed.
	first time.Time      // The first call of the next leader has begun.
	last  *memberProcess // The last leader.
	next  *memberProcess // The next leader.
}

func (h handover) took() time.Duration { return h.first.Sub(h.ended) }

// isEnd reports whether the last leader did not lead any more because it was terminated.
func (h handover) isEnd() bool {
	return !h.last.terminated.IsZero() && !h.ended.Before(h.last.terminated)
}

// handovers returns those that began since the given time.
func (f *shardFleet) handovers(since time.Time) (all []handover) {
	type event struct {
		memberMessage
		member *memberProcess
	}
	var events []event
	for _, m := range f.members {
		for _, message := range m.messages() {
			events = append(events, event{message, m})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int { return a.At.Compare(b.At) })
	leaders, unled := map[int]*memberProcess{}, map[int]event{}
	for _, e := range events {
		switch {
		case e.Kind == messageEnded && leaders[e.Shard] == e.member:
			delete(leaders, e.Shard)
			unled[e.Shard] = e
		case e.Kind == messageFirst:
			leaders[e.Shard] = e.member
			if last, ok := unled[e.Shard]; ok && !last.At.Before(since) {
				all = append(all, handover{e.Shard, last.At, e.At, last.member, e.member})
			}
			delete(unled, e.Shard)
		}
	}
	return all
}

// lists returns the number of lists of the shard's types that the next leader has requested since the last one ended,
// until it no longer leads.
func (h handover) lists() (n int) {
	for _, message := range h.next.messages() {
		if message.Shard != h.shard || message.At.Before(h.ended) {
			continue
		}
		switch message.Kind {
		case messageList:
			n++
		case messageEnded:
			return n
		}
	}
	return n
}

// messages returns what the process has printed, except for replies.
func (m *memberProcess) messages() []memberMessage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.log)
}

// listsSince returns the number of all lists that the replicas have requested since the given time.
func (f *shardFleet) listsSince(since time.Time) (n int) {
	for _, m := range f.members {
		for _, message := range m.messages() {
			if message.Kind == messageList && !message.At.Before(since) {
				n++
			}
		}
	}
	return n
}

// countRepeated returns the number of repeated calls of all replicas. Those of a replica that was killed are counted
// until the last call to countRepeated.
func (f *shardFleet) countRepeated(ctx context.Context) (n float64, err error) {
	replies, err := f.do(ctx, memberCommand{Do: commandCount})
	if err != nil {
		return 0, err
	}
	for i, m := range f.running() {
		m.repeated = replies[i].Repeated
	}
	for _, m := range f.members {
		for _, message := range m.messages() {
			m.repeated = max(m.repeated, message.Repeated)
		}
		n += float64(m.repeated)
	}
	return n, nil
}
