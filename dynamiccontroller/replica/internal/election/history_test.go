package election

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var histories = flag.Int("histories", 4000, "the number of random histories")

// TestL1_MachinesNeverLeadConcurrentlyInRandomHistories plays random histories of several machines with one Lease: slow
// and lost requests and responses, writes that take effect after they have timed out, clocks with different rates,
// clocks that jump, processes that are suspended, restarted and shut down, and Leases that somebody deletes or empties.
// At most one replica may lead at a time, none sends requests in a busy loop, and one leads soon after the last fault.
func TestL1_MachinesNeverLeadConcurrentlyInRandomHistories(t *testing.T) {
	n := *histories
	if testing.Short() {
		n = min(n, 1000)
	}
	for _, role := range []Role{Single, Fleet, Shard} {
		led, faults := 0, 0
		for seed := range n / len(roles) {
			h := newHistory(role, uint64(seed)) //nolint:gosec // not negative
			if violation := h.play(); violation != "" {
				t.Fatalf("role %d, seed %d: %s\n%s", role, seed, violation, h.log.String())
			}
			led, faults = led+h.terms, faults+h.faults
		}
		t.Logf("role %d: %d terms, %d faults", role, led, faults)
		if led < 3*n/len(roles) || faults < n {
			t.Errorf("role %d: only %d terms and %d faults", role, led, faults)
		}
	}
}

// history is a simulation without goroutines. Times are those of an ideal clock.
type history struct {
	random  *rand.Rand
	role    Role
	now     time.Time
	ends    time.Time // of the faults
	server  Record
	version int // zero if there is no Lease
	written int // the number of versions so far
	nodes   []*node
	late    []lateWrite
	log     strings.Builder

	terms, faults, processes int
}

// lateWrite is a write that takes effect after its sender has received no answer in time.
type lateWrite struct {
	at time.Time
	of *node
	op Operation
	on int // the version that the sender had read
}

// node is a replica.
type node struct {
	name    string
	machine *Machine
	rate    float64       // of its clocks
	ahead   time.Duration // of its wall clock
	born    time.Time
	version int // of the Lease, as in its last response
	seen    bool

	renewed   Instant
	leading   bool      // the fence has been opened, and not closed
	leaving   time.Time // when the runnables have returned, after which the Lease is released
	offline   time.Time // until then, requests fail
	suspended time.Time // until then, the process does not run
	next      time.Time
	requests  []time.Time // the last ones
	answer    *pendingAnswer
}

// pendingAnswer is the answer to the request that a node waits for.
type pendingAnswer struct {
	at      time.Time
	op      Operation
	answer  Answer
	version int // what the node knows afterwards
}

const (
	testDuration = 15 * time.Second
	faultTime    = 2 * time.Minute
)

func newHistory(role Role, seed uint64) *history {
	random := rand.New(rand.NewPCG(seed, uint64(role))) //nolint:gosec // reproducible
	h := &history{random: random, role: role, now: time.Unix(100_000, 0)}
	h.ends = h.now.Add(faultTime)
	if role == Shard { // as the planner creates it
		h.write(Record{}.Released(h.now))
	}
	for range 2 + h.random.IntN(3) {
		h.nodes = append(h.nodes, h.newNode())
	}
	return h
}

func (h *history) newNode() *node {
	h.processes++
	n := &node{
		name: fmt.Sprintf("n%d", h.processes), rate: 0.96 + 0.08*h.random.Float64(), born: h.now,
		next: h.now.Add(h.upTo(3 * time.Second)),
	}
	c := testConfig(h.role)
	c.Identity, c.Random = n.name, h.random.Float64
	n.machine = New(c)
	return n
}

func (h *history) upTo(d time.Duration) time.Duration {
	return time.Duration(h.random.Int64N(max(1, int64(d))))
}

func (h *history) chance(n int) bool { return h.random.IntN(n) == 0 }

// clock returns the clocks of a node.
func (n *node) clock(now time.Time) Instant {
	mono := n.born.Add(time.Duration(float64(now.Sub(n.born)) * n.rate))
	return Instant{mono, mono.Add(n.ahead)}
}

// ideal converts a time of the node's monotonic clock.
func (n *node) ideal(mono time.Time) time.Time {
	return n.born.Add(time.Duration(float64(mono.Sub(n.born)) / n.rate))
}

// isLeading reports whether the fence is open.
func (n *node) isLeading(now time.Time) bool {
	return n.leading && n.clock(now).Since(n.renewed) < Validity(testDuration)
}

func (h *history) write(r Record) {
	h.written++
	h.server, h.version = r, h.written
}

func (h *history) logf(format string, args ...any) {
	at := h.now.Sub(h.ends.Add(-faultTime)).Round(time.Millisecond)
	fmt.Fprintf(&h.log, "%8s "+format+"\n", append([]any{at}, args...)...)
}

// play returns a violation, or an empty string.
func (h *history) play() string {
	nextFault := h.now.Add(h.upTo(20 * time.Second))
	limit := h.ends.Add(3 * time.Minute)
	for h.now.Before(limit) {
		first := h.nodes[0]
		for _, n := range h.nodes {
			if n.next.Before(first.next) {
				first = n
			}
		}
		switch next := later(h.now, first.next); {
		case len(h.late) > 0 && !h.late[0].at.After(next) && !h.late[0].at.After(nextFault):
			h.now = later(h.now, h.late[0].at)
			h.applyLate()
		case nextFault.Before(h.ends) && nextFault.Before(next):
			h.now = nextFault
			h.fault()
			nextFault = h.now.Add(h.upTo(12 * time.Second))
		default:
			h.now = next
			if violation := h.step(first); violation != "" {
				return violation
			}
		}
		if violation := h.check(); violation != "" {
			return violation
		}
	}
	for _, n := range h.nodes {
		if n.isLeading(h.now) {
			return ""
		}
	}
	return "no replica leads after the last fault"
}

func (h *history) check() string {
	var leading []string
	for _, n := range h.nodes {
		if n.isLeading(h.now) {
			leading = append(leading, n.name)
		}
	}
	if len(leading) > 1 {
		return fmt.Sprintf("%s: %s lead", h.now.Sub(h.ends.Add(-faultTime)), strings.Join(leading, " and "))
	}
	return ""
}

// step performs one operation of a node.
func (h *history) step(n *node) string {
	if h.now.Before(n.suspended) {
		n.next = n.suspended
		return ""
	}
	if n.answer != nil {
		if n.next = n.answer.at; h.now.Before(n.next) {
			return ""
		}
		n.machine.Answer(n.answer.op, n.answer.answer, n.clock(h.now))
		n.seen = n.seen || n.answer.answer.Outcome == Succeeded && n.answer.op.Kind != Confirm
		n.version, n.answer = n.answer.version, nil
	}
	if !n.leaving.IsZero() && !h.now.Before(n.leaving) { // the runnables have returned
		n.leaving, n.leading = time.Time{}, false
		n.machine.Leave(n.clock(h.now))
		h.logf("%s leaves", n.name)
	}
	op := n.machine.Next(n.clock(h.now))
	n.next = h.now
	switch op.Kind {
	case Wait:
		n.next = n.ideal(op.Until).Add(time.Microsecond)
		if !n.leaving.IsZero() {
			n.next = earlier(n.next, n.leaving)
		}
	case Begin:
		h.terms++
		n.leading, n.renewed = true, op.Sent
		h.logf("%s leads", n.name)
	case Renew:
		n.renewed = op.Sent
	case Lose:
		n.leading = false
		h.logf("%s has lost: %s", n.name, op.Reason)
	case Stop:
		n.leading = false
		n.machine.Campaign()
		n.next = h.now.Add(2*time.Second + h.upTo(2*time.Second))
	case Confirm:
		a := Answer{Sent: n.clock(h.now)}
		if h.now.Before(h.ends) && h.chance(4) {
			a.Outcome = Refused
		}
		n.finish(h, op, a, h.upTo(100*time.Millisecond), n.version)
	case Read, Create, Update:
		return h.request(n, op)
	}
	return ""
}

// request sends a request. It takes effect at once, later or never, and the answer arrives or does not. The node is
// busy until then.
func (h *history) request(n *node, op Operation) string {
	n.requests = append(n.requests, h.now)
	if len(n.requests) > 30 {
		if took := h.now.Sub(n.requests[0]); took < 2*time.Second {
			return fmt.Sprintf("%s has sent 30 requests within %s", n.name, took)
		}
		n.requests = n.requests[1:]
	}
	a := Answer{Sent: n.clock(h.now)}
	timeout := 5 * time.Second
	if !op.Deadline.IsZero() {
		timeout = max(0, min(timeout, n.ideal(op.Deadline).Sub(h.now)))
	}
	switch faulty := h.now.Before(h.ends); {
	case h.now.Before(n.offline) || faulty && h.chance(20): // the request is lost
		a.Outcome = Unknown
		if h.chance(2) {
			n.finish(h, op, a, h.upTo(100*time.Millisecond), n.version)
		} else {
			n.finish(h, op, a, timeout, n.version)
		}
	case faulty && h.chance(20): // the response is lost
		_, _ = h.apply(n, op, n.version)
		a.Outcome = Unknown
		n.finish(h, op, a, h.upTo(timeout), n.version)
	case faulty && h.chance(20) && op.Kind != Read: // it takes effect later
		h.late = append(h.late, lateWrite{h.now.Add(timeout + h.upTo(time.Second)), n, op, n.version})
		slices.SortFunc(h.late, func(a, b lateWrite) int { return a.at.Compare(b.at) })
		a.Outcome = Unknown
		n.finish(h, op, a, timeout, n.version)
	case faulty && h.chance(20): // it is slow
		a.Outcome, a.Record = h.apply(n, op, n.version)
		n.finish(h, op, a, h.upTo(timeout), h.version)
	default:
		a.Outcome, a.Record = h.apply(n, op, n.version)
		n.finish(h, op, a, h.upTo(50*time.Millisecond), h.version)
	}
	return ""
}

// finish makes the answer to a request arrive after some time. The node then knows a version of the Lease.
func (n *node) finish(h *history, op Operation, a Answer, after time.Duration, version int) {
	n.next = h.now.Add(after)
	n.answer = &pendingAnswer{n.next, op, a, version}
}

// apply performs a request.
func (h *history) apply(n *node, op Operation, read int) (Outcome, Record) {
	switch {
	case op.Kind == Create && h.version != 0:
		return Refused, Record{}
	case op.Kind != Create && h.version == 0:
		return Missing, Record{}
	case op.Kind == Read:
		return Succeeded, h.server
	case op.Kind == Update && read != h.version:
		return Refused, Record{}
	}
	h.write(op.Record)
	if op.Record.IsReleased() {
		h.logf("%s releases", n.name)
	}
	return Succeeded, Record{}
}

func (h *history) applyLate() {
	w := h.late[0]
	h.late = h.late[1:]
	if outcome, _ := h.apply(w.of, w.op, w.on); outcome == Succeeded {
		h.logf("a write of %s takes effect late", w.of.name)
	}
}

// fault is something that happens.
func (h *history) fault() {
	h.faults++
	i := h.random.IntN(len(h.nodes))
	n := h.nodes[i]
	switch h.random.IntN(9) {
	case 0:
		n.offline = h.now.Add(h.upTo(30 * time.Second))
		h.logf("%s is offline for %s", n.name, n.offline.Sub(h.now))
	case 1:
		n.suspended = h.now.Add(h.upTo(30 * time.Second))
		h.logf("%s is suspended for %s", n.name, n.suspended.Sub(h.now))
	case 2:
		n.ahead += h.upTo(time.Minute) - 30*time.Second
		h.logf("the wall clock of %s is set to %s", n.name, n.ahead)
	case 3, 4: // the runnables are stopped, and the Lease is released once they have returned
		n.leaving = h.now.Add(h.upTo(5 * time.Second))
		n.next = earlier(n.next, n.leaving)
		h.logf("%s is stopped", n.name)
	case 5: // a crash. A process that has not seen the Lease can only replace another one while the Lease exists.
		if h.version != 0 {
			h.logf("%s crashes", n.name)
			h.nodes[i] = h.newNode()
		}
	case 6:
		if h.version != 0 && h.allHaveSeen() {
			h.version, h.server = 0, Record{}
			h.logf("the Lease is deleted")
		}
	case 7:
		if h.version != 0 {
			h.write(Record{Duration: h.server.Duration, Acquired: h.server.Acquired, Renewed: h.server.Renewed})
			h.logf("the Lease is emptied")
		}
	default:
		n.machine.Wake(n.clock(h.now))
		n.next = earlier(n.next, later(h.now, n.suspended))
		n.machine.Expect(h.nodes[h.random.IntN(len(h.nodes))].name)
	}
}

// allHaveSeen reports whether all nodes have received a response with the Lease. See the limitations of package
// replica.
func (h *history) allHaveSeen() bool {
	if h.role == Shard {
		return true
	}
	for _, n := range h.nodes {
		if !n.seen {
			return false
		}
	}
	return true
}
