package replica

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
)

// fleetLease is the Lease of a fleet. It is the same Lease that replicas without shards elect their leader with. Its
// holder identity records the layout (see [fleet.Holder]), and its duration is keepFactor times as long. fleetLease
// translates its records, so that the members elect their leader with it as usual. A candidate that acquires the Lease
// from a fleet keeps the recorded layout.
//
// The methods of Interface are called by only one goroutine at a time.
type fleetLease struct {
	resourcelock.Interface
	options Options
	keep    *keep
	changed func() // called when the layout changes; must not block

	// The last two records are compared to determine when the lease was renewed. lastSent is the time at which the last
	// request was sent whose response contained lastRaw.
	lastRaw  string
	lastSent instant

	mu       sync.Mutex // guards the fields below
	layout   layout
	changing bool // renewals announce a change of the layout
	final    bool // the next release allows replicas without shards to lead; implies changing
	fresh    int  // the number of shards of a layout that this member has recorded first, or zero
}

// layout is what a replica knows about the recorded layout.
type layout struct {
	state  layoutState
	shards int // if the state is layoutFixed or layoutChanging
}

type layoutState int

const (
	layoutUnknown  layoutState = iota // the lease has not been read
	layoutNone                        // no layout is recorded: the lease is missing, or not held by a fleet
	layoutChanging                    // shards that are led end, and no other shard may be led
	layoutFixed
)

func (l *fleetLease) currentLayout() layout {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.layout
}

// observe records the holder that a response contained.
func (l *fleetLease) observe(holder string) (h fleet.Holder, ok bool) {
	next := layout{state: layoutNone}
	if h, ok = fleet.ParseHolder(holder); ok {
		next = layout{layoutFixed, h.Shards}
		if h.Changing {
			next.state = layoutChanging
		}
	}
	l.setLayout(next)
	return h, ok
}

func (l *fleetLease) setLayout(next layout) {
	l.mu.Lock()
	changed := l.layout != next
	l.layout = next
	l.mu.Unlock()
	if next.state < layoutChanging { // while the layout is changing, shards can still be led
		l.keep.revoke(fmt.Errorf("the fleet's lease %s", next))
		l.lastRaw = ""
	}
	if changed {
		l.changed()
	}
}

// String completes a sentence that begins with "the fleet's lease".
func (l layout) String() string {
	switch l.state {
	case layoutFixed:
		return fmt.Sprintf("records %d shards", l.shards)
	case layoutChanging:
		return "announces another number of shards"
	case layoutNone:
		return "is not held by a fleet"
	default:
		return "has not been read"
	}
}

// Get reads the lease, and returns the record of an election among the members.
func (l *fleetLease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	sent := l.keep.clock.now()
	record, raw, err := l.Interface.Get(ctx)
	if apierrors.IsNotFound(err) {
		l.setLayout(layout{state: layoutNone})
	}
	if err != nil {
		return nil, nil, err
	}
	raw = fmt.Appendf(raw, "%d", record.RenewTime.UnixNano()) // the JSON contains only whole seconds
	h, ok := l.observe(record.HolderIdentity)
	if h.Leader != l.Identity() {
		_, _ = l.takeFresh() // another member has led since then
	}
	if !ok {
		return record, raw, nil
	}
	l.observeRenewal(string(raw), record.LeaseDurationSeconds, sent)
	record.HolderIdentity = h.Leader
	if h.Leader == "" { // as in a released lease; see isReleased
		record.LeaseDurationSeconds, record.AcquireTime = 1, record.RenewTime
	} else {
		record.LeaseDurationSeconds /= keepFactor
	}
	return record, raw, nil
}

// observeRenewal records a response with the record raw, to a request that was sent at the given time. If the record
// has changed, it was written after the last request was sent whose response did not contain it.
func (l *fleetLease) observeRenewal(raw string, seconds int, sent instant) {
	if l.lastRaw != "" && l.lastRaw != raw {
		l.keep.renew(l.lastSent, seconds)
	}
	l.lastRaw, l.lastSent = raw, sent
}

// Create creates the lease with this member as the leader. The previous holder of a lease that was deleted can still be
// leading, so that no shard is led before the first renewal.
func (l *fleetLease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.Interface.Create, false)
}

// Update acquires, renews or releases the lease.
func (l *fleetLease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.Interface.Update, true)
}

func (l *fleetLease) write(ctx context.Context, record resourcelock.LeaderElectionRecord,
	send func(context.Context, resourcelock.LeaderElectionRecord) error, renews bool) error {
	l.mu.Lock()
	h := fleet.Holder{Shards: l.options.Shards, Changing: l.changing, Leader: record.HolderIdentity}
	if l.layout.state >= layoutChanging {
		h.Shards = l.layout.shards
	}
	final, fresh := l.final, l.layout.state < layoutChanging && h.Leader != ""
	l.mu.Unlock()
	if record.HolderIdentity == "" && final {
		if err := send(ctx, record); err != nil {
			return err
		}
		l.setLayout(layout{state: layoutNone})
		return nil
	}
	if h.Leader == "" {
		h.Changing = false
	}
	record.HolderIdentity = h.String()
	record.LeaseDurationSeconds = keepFactor * int(l.options.LeaseDuration/time.Second)
	sent := l.keep.clock.now()
	if err := send(ctx, record); err != nil {
		return err
	}
	if fresh {
		l.mu.Lock()
		l.fresh = h.Shards
		l.mu.Unlock()
	}
	l.observe(record.HolderIdentity)
	if renews {
		l.keep.renew(sent, record.LeaseDurationSeconds)
	}
	l.lastRaw = "" // the next response is not compared with an older one
	return nil
}

// takeFresh returns the number of shards of a layout that this member has recorded first. It reports false if it was
// called before.
func (l *fleetLease) takeFresh() (count int, fresh bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	count, l.fresh = l.fresh, 0
	return count, count > 0
}

// announceChange makes the following renewals announce a change of the layout.
func (l *fleetLease) announceChange() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changing = true
}

// allowChange makes the next release allow any replica to lead, so that the next leader records its own layout. Until
// then, all renewals announce the change. No shard may be led.
func (l *fleetLease) allowChange() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.final = true
}

// cancelChange ends the announcement, unless the change has been allowed.
func (l *fleetLease) cancelChange() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changing = l.final
}

// endChange is called after the term in which a change was allowed.
func (l *fleetLease) endChange() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changing, l.final = false, false
}
