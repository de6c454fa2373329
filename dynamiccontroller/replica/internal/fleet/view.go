package fleet

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

// View is what a replica observes of its fleet: the members, the holders of the shards, and the plan. It can be
// outdated. It is safe for concurrent use.
type View struct {
	name     string
	lifetime time.Duration
	changed  func()
	loop     atomic.Pointer[listwatch.Loop]

	mu      sync.Mutex // guards the fields below
	members map[string]*memberLease
	changes changes
	crashes suspects
	holders map[int]string
	plan    string
	synced  bool
}

type memberLease struct {
	identity string
	state    State
	version  string
	seen     time.Time // when the version was first seen
	since    time.Time // when the member was first seen
	dead     bool
}

// Member is a member that is alive.
type Member struct {
	Identity string
	State    State
	// Age is the time since the member was first observed.
	Age time.Duration
	// Flapping reports that the process of the member has ended several times shortly after its start, and that the
	// member has not been observed for long enough since then.
	Flapping bool
}

// NewView returns the view of the fleet with the name. A member whose Lease does not change for the lifetime counts as
// gone. changed is called after a change that may matter. It must not block and must not call the view.
func NewView(name string, lifetime time.Duration, changed func()) *View {
	return &View{
		name: name, lifetime: lifetime, changed: changed, members: map[string]*memberLease{}, holders: map[int]string{},
		changes: changes{settle: SettlePeriods * lifetime, flaps: map[string]flaps{}},
		crashes: suspects{leaseDuration: lifetime, shards: map[int]suspect{}},
	}
}

// Observed returns the time at which the Lease of a member was last observed to have changed, or the zero time.
func (v *View) Observed(identity string) time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.observedLocked(identity)
}

func (v *View) observedLocked(identity string) time.Time {
	if m := v.members[leasename.Member(v.name, identity)]; m != nil {
		return m.seen
	}
	return time.Time{}
}

// ForgetCrashes is called when the number of shards has changed.
func (v *View) ForgetCrashes() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.crashes.forget()
}

func (v *View) setSynced() {
	v.mu.Lock()
	if !v.synced { // a member can have gone shortly before
		v.synced, v.changes.left = true, time.Now()
	}
	v.mu.Unlock()
	v.changed()
}

// put records a Lease that was created or changed.
func (v *View) put(lease *coordinationv1.Lease) {
	v.mu.Lock()
	matters := v.putLocked(lease)
	v.mu.Unlock()
	if matters {
		v.changed()
	}
}

func (v *View) putLocked(lease *coordinationv1.Lease) (matters bool) {
	holder := ptr.Deref(lease.Spec.HolderIdentity, "")
	if lease.Name == leasename.Plan(v.name) {
		matters = v.plan != lease.Annotations[PlanAnnotation]
		v.plan = lease.Annotations[PlanAnnotation]
		return matters
	}
	if index, ok := v.shardOf(lease.Name); ok {
		before, known := v.holders[index]
		v.holders[index] = holder
		v.crashes.observe(index, holder, time.Now())
		return !known || before != holder
	}
	if lease.Name != leasename.Member(v.name, holder) {
		return false
	}
	state, err := DecodeState(lease.Annotations[StateAnnotation])
	if err != nil {
		return false
	}
	m := v.members[lease.Name]
	switch {
	case m == nil:
		m = &memberLease{identity: holder}
		v.members[lease.Name] = m
		matters = true
	case m.version == lease.ResourceVersion:
		return false
	}
	matters = matters || m.dead || m.state.differs(state)
	now := time.Now()
	switch {
	case m.version == "" || m.dead:
		m.since = now
		v.changes.join(now)
	case state.Leaving && !m.state.Leaving:
		v.changes.leave(m.identity, m.since, now)
	}
	m.state, m.version, m.seen, m.dead = state, lease.ResourceVersion, now, false
	return matters
}

// remove records that a Lease was deleted.
func (v *View) remove(lease *coordinationv1.Lease) {
	v.mu.Lock()
	if index, ok := v.shardOf(lease.Name); ok {
		delete(v.holders, index)
		v.crashes.observe(index, "", time.Now())
	}
	if m := v.members[lease.Name]; m != nil {
		delete(v.members, lease.Name)
		v.end(m)
	}
	if lease.Name == leasename.Plan(v.name) {
		v.plan = ""
	}
	v.mu.Unlock()
	v.changed()
}

// end records that a member is gone. If it was leaving, or did not renew its Lease, this has been recorded before.
func (v *View) end(m *memberLease) {
	now := time.Now()
	if m.dead || m.state.Leaving {
		v.changes.join(now)
		return
	}
	v.changes.leave(m.identity, m.since, now)
	v.crashes.end(now)
}

// shardOf returns the index of the shard that a Lease belongs to.
func (v *View) shardOf(lease string) (index int, ok bool) {
	number, ok := strings.CutPrefix(lease, leasename.ShardPrefix(v.name))
	if !ok {
		return 0, false
	}
	index, err := strconv.Atoi(number)
	return index, err == nil && leasename.Shard(v.name, index) == lease
}

// Snapshot is the content of a view at one time.
type Snapshot struct {
	// Synced reports whether the Leases have been listed.
	Synced bool
	// Members are the living members, in the order of their identities.
	Members []Member
	// Gone contains the Leases of members that are gone: their names, and the versions that were observed last.
	Gone map[string]string
	// Unchanged is the time since a member came, went, or began to leave.
	Unchanged time.Duration
	// Settled reports that no member has gone, or begun to leave, for some time. Members that flap do not count.
	Settled bool
	// Holders are the holders of the shards. A shard that is not in the map has no Lease.
	Holders map[int]string
	// Held contains the shards that no member must lead now, because their last leaders have crashed.
	Held map[int]bool
	// Plan is the encoded plan, or empty.
	Plan string
}

// Member returns the living member with the identity.
func (s *Snapshot) Member(identity string) (Member, bool) {
	for _, m := range s.Members {
		if m.Identity == identity {
			return m, true
		}
	}
	return Member{}, false
}

// Assignments returns the plan. A plan that is missing or invalid has no assignments.
func (s *Snapshot) Assignments(log logr.Logger) plan.Plan {
	if s.Plan == "" {
		return nil
	}
	assignments, err := plan.Decode(s.Plan)
	if err != nil {
		log.V(1).Info("Plan ignored", keyError, err.Error())
	}
	return assignments
}

// Snapshot returns the current content.
func (v *View) Snapshot() *Snapshot {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := &Snapshot{Synced: v.synced, Plan: v.plan, Holders: map[int]string{}, Gone: map[string]string{}}
	for index, holder := range v.holders {
		s.Holders[index] = holder
	}
	for name, m := range v.members {
		if !m.dead && time.Since(m.seen) > v.lifetime {
			v.end(m)
			m.dead = true
		}
		if m.dead {
			s.Gone[name] = m.version
		} else {
			age := time.Since(m.since)
			s.Members = append(s.Members, Member{m.identity, m.state, age, v.changes.isFlapping(m.identity, age)})
		}
	}
	slices.SortFunc(s.Members, func(a, b Member) int { return strings.Compare(a.Identity, b.Identity) })
	s.Held = v.crashes.held(time.Now(), v.observedLocked)
	s.Unchanged, s.Settled = time.Since(v.changes.last), time.Since(v.changes.left) >= v.changes.settle
	return s
}
