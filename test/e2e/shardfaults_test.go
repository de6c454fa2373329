package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/test/e2e/internal/history"
)

// shardFaults are injected into fleets with shards, in addition to the other faults.
var shardFaults = []fault{
	{name: "handler returns slowly during a move", inject: (*fleet).slowHandler, isMove: true, isBrief: true},
	{name: "kill -9 between drain and release", inject: (*fleet).killBeforeRelease, isMove: true, isBrief: true},
	{name: "stop in a handler during a move", inject: (*fleet).stopInHandler, isMove: true},
	{name: "stop between fence and send", inject: (*fleet).stopBeforeSend, isMove: true},
	{name: "forged plans", inject: (*fleet).forgePlans, isMove: true, isBrief: true},
	{name: "leases of half of the shards deleted", inject: (*fleet).deleteHalfOfLeases},
	{name: "replica joins and leaves", inject: joinWith(shardCount), isMove: true, isBrief: true},
	{name: "replica with another number of shards joins and leaves", inject: joinWith(2 * shardCount), isMove: true,
		isBrief: true},
	{name: "type deleted and created during moves", inject: (*fleet).recreateType, isBrief: true},
}

var errNotReached = errors.New("the trap has not been reached")

// setTrap sets a trap for the current process of a member. The returned function returns the event that the process has
// reached the trap, or an error.
func (f *fleet) setTrap(m *member, t trap) (reached func() (history.Event, error)) {
	f.Helper()
	process, since := m.processName(), history.Now()
	f.noError(os.WriteFile(trapFile(f.dir, process, t), nil, 0o600))
	return func() (history.Event, error) {
		for _, e := range f.events() {
			if e.Kind == history.Trapped && e.Process == process && e.At >= since && e.Error == string(t) {
				return e, nil
			}
		}
		return history.Event{}, errNotReached
	}
}

// leaderOfShards returns the member, or another one if the member leads no shard.
func (f *fleet) leaderOfShards(m *member) *member {
	f.Helper()
	var leader *member
	f.eventually("a shard has a leader", func() error {
		for lease, candidate := range f.leaders(0) {
			switch {
			case lease == leaseName || candidate == f.spare:
			case candidate == m:
				leader = m
				return nil
			case leader == nil || candidate.name < leader.name:
				leader = candidate
			}
		}
		if leader == nil {
			return errors.New("no shard has a leader")
		}
		return nil
	})
	return leader
}

// killBeforeRelease kills a leader when all calls of a shard that moves have returned, before it releases the shard.
func (f *fleet) killBeforeRelease(at target, d time.Duration) {
	m := f.leaderOfShards(at.member)
	f.setTrap(m, trapRelease)
	var moving string // One at a time, because the plan must not have moved the others when their leader is killed.
	f.eventually(m.processName()+" is killed before it releases a shard", func() error {
		if m.process.hasExited() {
			return nil
		}
		leaders := f.leaders(0)
		if leader := leaders[moving]; moving == "" || leader != nil && leader != m {
			moving = ""
			for _, lease := range f.engineLeases() {
				if leaders[lease] == m {
					moving = lease
				}
			}
		}
		return errors.Join(errNotReached, f.move(m, moving))
	})
	f.wait(d)
	f.start(m)
}

// slowHandler moves a shard during a handler call that returns slowly.
func (f *fleet) slowHandler(at target, d time.Duration) {
	m := f.leaderOfShards(at.member)
	call := f.awaitHandler(m, trapSlowHandler)
	f.eventually("the term of "+call.Lease+" ends", func() error {
		for _, e := range f.events() {
			if e.Kind == history.Led && e.Process == call.Process && e.Lease == call.Lease && e.At >= call.At {
				return nil
			}
		}
		return errors.Join(errNotReached, f.move(m, call.Lease))
	})
	f.wait(d)
}

// stopInHandler stops a leader in a handler call of a shard that moves.
func (f *fleet) stopInHandler(at target, d time.Duration) {
	m := f.leaderOfShards(at.member)
	call := f.awaitHandler(m, trapHandler)
	f.eventually(m.processName()+" is stopped in a handler of "+call.Lease, func() error {
		if f.hasStopped(m, call.At) {
			return nil
		}
		return errors.Join(errNotReached, f.move(m, call.Lease))
	})
	f.wait(d)
	f.resume(m)
}

// awaitHandler waits until a handler call in a member has reached a trap. The call waits until its shard moves.
func (f *fleet) awaitHandler(m *member, t trap) (call history.Event) {
	f.Helper()
	reached := f.setTrap(m, t)
	f.eventually(m.processName()+" calls a handler", func() (err error) {
		call, err = reached()
		return err
	})
	return call
}

// stopBeforeSend stops a leader after the fence has allowed a write, before the write is sent.
func (f *fleet) stopBeforeSend(at target, d time.Duration) {
	m := f.leaderOfShards(at.member)
	since := history.Now()
	f.setTrap(m, trapSend)
	f.eventually(m.processName()+" is stopped before it sends a write", func() error {
		if !f.hasStopped(m, since) {
			return errNotReached
		}
		return nil
	})
	f.wait(d)
	f.resume(m)
}

// hasStopped reports whether the process of a member has stopped itself at or after since.
func (f *fleet) hasStopped(m *member, since history.Time) bool {
	f.Helper()
	return slices.ContainsFunc(f.events(), func(e history.Event) bool {
		return e.Kind == history.Stopped && e.Process == m.processName() && e.At >= since
	})
}

// deleteHalfOfLeases deletes the leases of every other shard, among them the given one.
func (f *fleet) deleteHalfOfLeases(at target, d time.Duration) {
	leases := f.engineLeases()
	for i := max(0, slices.Index(leases, at.lease)) % 2; i < len(leases); i += 2 {
		if err := f.removeLease(leases[i]); !apierrors.IsNotFound(err) {
			f.noError(err)
		}
	}
	f.wait(d)
}

// joinWith returns a fault in which another replica joins, which is configured for a number of shards. The recorded
// number remains in effect. The replica leaves some time after shards have moved to it.
func joinWith(count int) func(*fleet, target, time.Duration) {
	return func(f *fleet, _ target, d time.Duration) {
		f.spare.shards = count
		f.start(f.spare)
		f.eventually("shards move to the replica that has joined", func() error {
			for _, m := range f.leaders(0) {
				if m == f.spare {
					return nil
				}
			}
			return errors.New("it leads no shard")
		})
		f.wait(d)
		f.terminate(f.spare)
	}
}

// recreateType deletes a type, moves all shards of the member, and creates the type again.
func (f *fleet) recreateType(at target, d time.Duration) {
	gvr := f.types[max(0, slices.Index(f.engineLeases(), at.lease))]
	f.noError(f.removeType(f.Context(), gvr))
	_ = f.move(at.member, f.engineLeases()...) // Another move can be in progress.
	f.wait(d)
	f.noError(define(f.cluster.Config(), gvr))
	for _, o := range slices.Concat(f.load.changing, f.load.constant) {
		if o.gvr == gvr {
			f.createObject(o, f.load.lastChange(o))
		}
	}
}

// forgePlans gives all shards to each member in turn, while the leader of the fleet plans.
func (f *fleet) forgePlans(_ target, d time.Duration) {
	const interval = 100 * time.Millisecond
	for n, end := 0, time.Now().Add(d); time.Now().Before(end); n++ {
		leaders, identities := f.leaders(0), f.identities()
		_ = f.editPlan(func(p *encodedPlan) { // Conflicts are irrelevant.
			p.Members = nil
			index := map[*member]int{}
			members := slices.Clone(f.members)
			slices.SortFunc(members, func(a, b *member) int {
				return strings.Compare(identities[a.processName()], identities[b.processName()])
			})
			for _, m := range members {
				index[m] = len(p.Members)
				p.Members = append(p.Members, identities[m.processName()])
			}
			for i, lease := range f.engineLeases() {
				from, ok := index[leaders[lease]]
				if !ok {
					from = none
				}
				count := len(members)
				p.Shards[i] = []int{n % count, (n + 1) % count, (n + 2) % count, none, from}
			}
		})
		f.wait(interval)
	}
}

// encodedPlan is the plan in the annotation of the lease of the plan. Shards contains the indexes of the leader, the
// standby, the warming member, the one that it replaces, and the one that hands over the shard.
type encodedPlan struct {
	Members []string `json:"members"`
	Shards  [][]int  `json:"shards"`
}

const (
	none           = -1 // No member.
	planAnnotation = "dynamic-controller.github.io/plan"
)

// move changes the plan, so that the member hands over the leadership of shards to their standbys. A shard that has no
// standby is not moved.
func (f *fleet) move(from *member, leases ...string) error {
	f.Helper()
	identity := f.identities()[from.processName()]
	return f.editPlan(func(p *encodedPlan) {
		m := slices.Index(p.Members, identity)
		for i, lease := range f.engineLeases() {
			row := p.Shards[i]
			if m != none && len(row) == 2 && row[0] == m && row[1] != none && slices.Contains(leases, lease) {
				p.Shards[i] = []int{row[1], row[0], none, none, row[0]}
			}
		}
	})
}

func (f *fleet) decodePlan(text string) (*encodedPlan, error) {
	p := &encodedPlan{}
	if err := json.Unmarshal([]byte(text), p); err != nil {
		return nil, err
	}
	if len(p.Shards) != f.shards {
		return nil, fmt.Errorf("the plan has %d shards", len(p.Shards))
	}
	return p, nil
}

func (f *fleet) editPlan(edit func(*encodedPlan)) error {
	leases := f.clients.CoordinationV1().Leases(f.namespace)
	lease, err := leases.Get(f.Context(), leaseName+"-plan", metav1.GetOptions{})
	if err != nil {
		return err
	}
	p, err := f.decodePlan(lease.Annotations[planAnnotation])
	if err != nil {
		return err
	}
	edit(p)
	text, err := json.Marshal(p)
	if err != nil || string(text) == lease.Annotations[planAnnotation] {
		return err
	}
	lease.Annotations[planAnnotation] = string(text)
	_, err = leases.Update(f.Context(), lease, metav1.UpdateOptions{})
	return err
}
