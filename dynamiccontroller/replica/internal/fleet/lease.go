package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/election"
)

// Lease is the Lease of a fleet. It is the same Lease with which replicas without shards elect their leader. Its holder
// identity records the layout (see [Holder]), and its duration is LeaseFactor times as long. Lease translates its
// records, so that the members elect their leader with it as with any other.
//
// The methods of Interface are called by only one goroutine at a time.
type Lease struct {
	resourcelock.Interface
	config    Config
	exclusion *Exclusion
	changed   func() // called when the layout changes; must not block

	// The last two records are compared to determine when the lease was renewed. lastSent is the time at which the last
	// request was sent whose response contained lastRaw.
	lastRaw  string
	lastSent election.Instant

	mu     sync.Mutex // guards layout
	layout layoutMachine
}

// NewLease returns the Lease of a fleet. It calls changed when the layout changes, which must not block.
func NewLease(lease resourcelock.Interface, config Config, exclusion *Exclusion, changed func()) *Lease {
	return &Lease{
		Interface: lease, config: config, exclusion: exclusion, changed: changed,
		layout: layoutMachine{identity: config.Identity, configured: config.Shards},
	}
}

// Layout returns the layout as of the last request.
func (l *Lease) Layout() Layout {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.layout.layout
}

// update records a response. If it shows that shards can no longer be led, the exclusion ends. While the layout is
// changing, they can.
func (l *Lease) update(change func(*layoutMachine)) {
	l.mu.Lock()
	before := l.layout.layout
	change(&l.layout)
	after := l.layout.layout
	l.mu.Unlock()
	if !after.IsRecorded() {
		l.exclusion.Revoke(fmt.Errorf("the fleet's lease %s", after))
		l.lastRaw = ""
	}
	if before != after {
		l.changed()
	}
}

// Get reads the lease, and returns the record of an election among the members.
func (l *Lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	sent := l.exclusion.now()
	record, raw, err := l.Interface.Get(ctx)
	if apierrors.IsNotFound(err) {
		l.update((*layoutMachine).observeMissing)
	}
	if err != nil {
		return nil, nil, err
	}
	raw = fmt.Appendf(raw, "%d", record.RenewTime.UnixNano()) // the JSON contains only whole seconds
	var h Holder
	var ok bool
	l.update(func(m *layoutMachine) { h, ok = m.read(record.HolderIdentity) })
	if !ok {
		return record, raw, nil
	}
	l.observeRenewal(string(raw), record.LeaseDurationSeconds, sent)
	record.HolderIdentity = h.Leader
	if h.Leader == "" { // as in a released lease; see election.Record.IsReleased
		record.LeaseDurationSeconds, record.AcquireTime = 1, record.RenewTime
	} else {
		record.LeaseDurationSeconds /= LeaseFactor
	}
	return record, raw, nil
}

// observeRenewal records a response with the record raw, to a request that was sent at the given time. If the record
// has changed, it was written after the last request was sent whose response did not contain it.
func (l *Lease) observeRenewal(raw string, seconds int, sent election.Instant) {
	if l.lastRaw != "" && l.lastRaw != raw {
		l.exclusion.Renew(l.lastSent, seconds)
	}
	l.lastRaw, l.lastSent = raw, sent
}

// Create creates the lease with this member as the leader. The previous holder of a lease that was deleted can still be
// leading, so that no shard is led before the first renewal.
func (l *Lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	_, err := l.write(ctx, record, l.Interface.Create)
	return err
}

// Update acquires, renews or releases the lease.
func (l *Lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	sent := l.exclusion.now()
	recorded, err := l.write(ctx, record, l.Interface.Update)
	if recorded && err == nil {
		l.exclusion.Renew(sent, l.seconds())
	}
	return err
}

// write reports whether the layout was recorded.
func (l *Lease) write(
	ctx context.Context, record resourcelock.LeaderElectionRecord,
	send func(context.Context, resourcelock.LeaderElectionRecord) error,
) (recorded bool, err error) {
	l.mu.Lock()
	h, recorded := l.layout.holderFor(record.HolderIdentity)
	l.mu.Unlock()
	if recorded {
		record.HolderIdentity, record.LeaseDurationSeconds = h.String(), l.seconds()
	}
	if err := send(ctx, record); err != nil {
		return recorded, err
	}
	if !recorded {
		l.update((*layoutMachine).observeMissing)
		return recorded, nil
	}
	l.update(func(m *layoutMachine) { m.wrote(h) })
	l.lastRaw = "" // the next response is not compared with an older one
	return recorded, nil
}

// seconds returns the duration of the lease.
func (l *Lease) seconds() int { return LeaseFactor * int(l.config.LeaseDuration/time.Second) }

// EndTerm is called when this member has stepped down as the leader of the fleet.
func (l *Lease) EndTerm() { l.do((*layoutMachine).endTerm) }

// CancelChange ends the announcement of a change of the layout, unless the layout is about to be removed.
func (l *Lease) CancelChange() { l.do((*layoutMachine).cancel) }

// takeFresh returns the number of shards of a layout that this member has recorded first. It reports false if it was
// called before.
func (l *Lease) takeFresh() (count int, fresh bool) {
	l.do(func(m *layoutMachine) { count, fresh = m.takeFresh() })
	return count, fresh
}

// do calls the machine for what does not change the layout.
func (l *Lease) do(step func(*layoutMachine)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	step(&l.layout)
}

// errNotNow is returned if the Lease of a shard was acquired although the shard must not be led.
var errNotNow = errors.New("the shard cannot be led now")

// Confirm returns an error unless a shard of a layout may be led. It is called after the Lease of the shard was
// acquired. The fleet's leader announces a change of the layout before it waits for the Leases of all shards. A member
// that has acquired one either reads the announcement, or the leader waits for it.
func (l *Lease) Confirm(ctx context.Context, shards int) error {
	lease, err := l.config.Client.Get(ctx, l.config.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("%w: read the fleet's lease: %w", errNotNow, err)
	}
	holder := ptr.Deref(lease.Spec.HolderIdentity, "")
	if h, ok := ParseHolder(holder); !ok || h.Changing || h.Shards != shards {
		return fmt.Errorf("%w: the fleet's lease is held by %q", errNotNow, holder)
	}
	if err := l.exclusion.Check(); err != nil {
		return fmt.Errorf("%w: %w", errNotNow, err)
	}
	return nil
}
