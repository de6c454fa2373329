package replica

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"pgregory.net/rapid"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// fleetStep is one fault in the history of a fleet.
type fleetStep struct {
	after   time.Duration
	fault   fleetFault
	replica int
	shard   int
}

type fleetFault string

const (
	fleetDisconnect  fleetFault = "disconnect"
	fleetReconnect   fleetFault = "reconnect"
	fleetLose        fleetFault = "lose responses"
	fleetStop        fleetFault = "stop"
	fleetCrash       fleetFault = "crash"
	fleetJoin        fleetFault = "join"
	fleetJoinPlain   fleetFault = "join without shards"
	fleetJoinOther   fleetFault = "join with other shards"
	fleetForge       fleetFault = "forge a plan"
	fleetForgeMember fleetFault = "forge a member"
	fleetDropPlan    fleetFault = "delete the plan"
	fleetDropShard   fleetFault = "delete the lease of a shard"
	fleetFleetDown   fleetFault = "requests for the fleet's lease fail"
	fleetShardDown   fleetFault = "requests for the leases of shards fail"
	fleetSlow        fleetFault = "runnables return slowly"
	fleetWallForward fleetFault = "wall clock forward"
)

var fleetFaults = []fleetFault{
	fleetDisconnect, fleetReconnect, fleetReconnect, fleetLose, fleetStop, fleetCrash, fleetJoin, fleetJoinPlain,
	fleetJoinOther, fleetForge, fleetForgeMember, fleetDropPlan, fleetDropShard, fleetFleetDown, fleetShardDown,
	fleetSlow, fleetWallForward,
}

func drawFleetHistory(t *rapid.T) []fleetStep {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) fleetStep {
		return fleetStep{
			after:   time.Duration(rapid.IntRange(0, 8000).Draw(t, "ms")) * time.Millisecond,
			fault:   rapid.SampledFrom(fleetFaults).Draw(t, "fault"),
			replica: rapid.IntRange(0, 5).Draw(t, "replica"),
			shard:   rapid.IntRange(0, 3).Draw(t, "shard"),
		}
	}), 5, 25).Draw(t, "history")
}

// TestH2_ShardsAreNeverLedConcurrentlyInARandomHistory checks that no two replicas lead a shard at the same time, and
// that no replica without shards leads while a shard is led. At the end, all shards are led if a member is left.
func TestH2_ShardsAreNeverLedConcurrentlyInARandomHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		history := drawFleetHistory(rt)
		var violations []string
		synctest.Test(t, func(t *testing.T) { violations = simulateFleet(t, history) })
		if len(violations) > 0 {
			var b strings.Builder
			var at time.Duration
			for _, s := range history {
				at += s.after
				fmt.Fprintf(&b, "%8s %s, replica %d, shard %d\n", at, s.fault, s.replica, s.shard)
			}
			rt.Fatalf("%s\n%s", strings.Join(violations, "\n"), b.String())
		}
	})
}

// fleetSimulation runs members and replicas without shards.
type fleetSimulation struct {
	t       *testing.T
	server  *fakeLeases
	runs    *shardRuns
	members []*fleetRig
	plains  []*plainRig
	workers []*worker
	gone    map[*fleetRig]bool
}

func simulateFleet(t *testing.T, history []fleetStep) []string {
	s := &fleetSimulation{t: t, server: newFakeLeases(), runs: newShardRuns(), gone: map[*fleetRig]bool{}}
	for range 3 {
		s.join(4)
	}
	stop := make(chan struct{})
	checked := make(chan []string)
	go s.watchPlains(stop, checked)
	for _, step := range history {
		time.Sleep(step.after)
		s.perform(step)
	}
	s.heal()
	violations := s.wantLed()
	close(stop)
	violations = append(violations, <-checked...)
	for _, m := range s.members {
		_ = m.stop()
	}
	s.runs.mu.Lock()
	defer s.runs.mu.Unlock()
	return append(violations, s.runs.violations...)
}

func (s *fleetSimulation) join(shards int) {
	name := fmt.Sprintf("m%d", len(s.members))
	s.members = append(s.members, newFleetRig(s.t, s.server, s.runs, name, shardOptions(shards)).start())
}

// watchPlains checks that no replica without shards leads while a shard is led.
func (s *fleetSimulation) watchPlains(stop <-chan struct{}, checked chan<- []string) {
	var violations []string
	for {
		select {
		case <-stop:
			checked <- violations
			return
		case <-time.After(20 * time.Millisecond):
		}
		s.runs.mu.Lock()
		workers, led := s.workers, len(s.runs.running)
		s.runs.mu.Unlock()
		for _, w := range workers {
			if led > 0 && w.isRunning() && len(violations) == 0 {
				violations = append(violations, fmt.Sprintf("a replica without shards leads while %d shards are led", led))
			}
		}
	}
}

func (s *fleetSimulation) perform(step fleetStep) {
	m := s.members[step.replica%len(s.members)]
	switch step.fault {
	case fleetDisconnect:
		m.client.down.Store(true)
	case fleetReconnect:
		m.reconnect()
	case fleetLose:
		m.loseResponses()
	case fleetStop:
		s.gone[m] = true
		m.cancel()
	case fleetCrash:
		s.gone[m] = true
		m.client.down.Store(true)
		m.cancel()
	case fleetJoin:
		s.join(4)
	case fleetJoinPlain:
		r, w := newPlain(s.t, s.server, fmt.Sprintf("plain%d", len(s.plains)))
		s.runs.mu.Lock()
		s.workers = append(s.workers, w)
		s.runs.mu.Unlock()
		s.plains = append(s.plains, r)
		r.start()
	case fleetJoinOther:
		s.join(8)
	case fleetForge:
		s.forge(m, step.shard)
	case fleetForgeMember:
		s.server.edit(leasename.Member("test", m.options.Identity), func(lease *coordinationv1.Lease) {
			lease.Annotations[fleet.StateAnnotation] = fleet.State{Shards: 8, Layout: 4, Warm: []int{0, 1, 2, 3}}.Encode()
		})
	case fleetDropPlan:
		s.server.edit(leasename.Plan("test"), nil)
	case fleetDropShard:
		s.server.edit(leasename.Shard("test", step.shard), nil)
	case fleetFleetDown:
		m.failFor(func(name string) bool { return name == "test" })
	case fleetShardDown:
		m.failFor(func(name string) bool { return strings.HasPrefix(name, "test-shard-") })
	case fleetSlow:
		m.linger.Store(int64(4 * time.Second))
	case fleetWallForward:
		m.ahead.Add(int64(time.Duration(step.shard+1) * time.Second))
	}
}

// forge gives all shards to one member, which need not be warm.
func (s *fleetSimulation) forge(m *fleetRig, from int) {
	forged := make(plan.Plan, 4)
	for i := range forged {
		forged[i].Leader = m.options.Identity
		forged[i].From = s.members[from%len(s.members)].options.Identity
	}
	text, err := forged.Encode()
	wantNoError(s.t, err)
	s.server.edit(leasename.Plan("test"), func(lease *coordinationv1.Lease) {
		lease.Annotations[fleet.PlanAnnotation] = text
	})
}

// heal ends all faults that are still in effect.
func (s *fleetSimulation) heal() {
	for _, m := range s.members {
		if !s.gone[m] {
			m.reconnect()
			m.linger.Store(0)
		}
	}
	for _, r := range s.plains {
		_ = r.stop()
	}
}

// wantLed waits until all shards of a layout are led.
func (s *fleetSimulation) wantLed() []string {
	if len(s.gone) == len(s.members) {
		return nil
	}
	for range 600 {
		h, ok := fleet.ParseHolder(s.server.holder("test"))
		if ok && s.runs.count() == h.Shards {
			return nil
		}
		time.Sleep(200 * time.Millisecond)
	}
	return []string{fmt.Sprintf("%d shards are led, the lease is held by %q", s.runs.count(), s.server.holder("test"))}
}
