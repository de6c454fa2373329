package fleet

import "fmt"

// Layout is the number of shards that the fleet's Lease records, as of the last request.
type Layout struct {
	State  LayoutState
	Shards int // if the state is LayoutChanging or LayoutFixed
}

// LayoutState is the state of a layout.
type LayoutState int

const (
	LayoutUnknown  LayoutState = iota // the Lease has not been read
	LayoutNone                        // the Lease is missing, or not held by a fleet
	LayoutChanging                    // leaders of shards stop, and no others begin
	LayoutFixed
)

// IsRecorded reports whether the Lease names a number of shards.
func (l Layout) IsRecorded() bool { return l.State >= LayoutChanging }

// String completes a sentence that begins with "the fleet's lease".
func (l Layout) String() string {
	switch l.State {
	case LayoutFixed:
		return fmt.Sprintf("records %d shards", l.Shards)
	case LayoutChanging:
		return "announces another number of shards"
	case LayoutNone:
		return "is not held by a fleet"
	default:
		return "has not been read"
	}
}

// layoutMachine decides what a member writes about the layout to the fleet's Lease, and records what it reads. A member
// that acquires the Lease keeps the recorded layout. The layout is replaced in these steps:
//
//	           a leader records     announce               no shard is led:
//	           its own number                              allow, then release
//	LayoutNone ---------------> LayoutFixed ---> LayoutChanging ------> LayoutNone
//	    ^                         |   ^                 |
//	    '-------------------------'   '-----------------'
//	  somebody deletes the Lease       the leader ends, or cancels
//	  or takes it
//
// The state is LayoutUnknown before the first response. Only in LayoutNone, replicas with another number of shards, or
// without any, can lead. The member follows another layout when nothing of the former one is running any more.
type layoutMachine struct {
	identity   string // of this member
	configured int    // the number of shards for which it is configured
	layout     Layout
	change     change
	fresh      int // the number of shards of a layout that this member has recorded first, or zero
}

// change is what this member does about the layout while it leads the fleet.
type change int

const (
	noChange  change = iota
	announced        // renewals announce a change
	allowed          // the next release removes the layout; until then, renewals announce the change
)

// read records the holder of the Lease that was read. It returns false if the Lease is not held by a fleet.
func (m *layoutMachine) read(holder string) (h Holder, ok bool) {
	h, ok = m.observe(holder)
	if h.Leader != m.identity {
		m.fresh = 0 // another member has led since then
	}
	return h, ok
}

// observe records the holder of the Lease, as read or written.
func (m *layoutMachine) observe(holder string) (h Holder, ok bool) {
	if h, ok = ParseHolder(holder); !ok {
		m.layout = Layout{State: LayoutNone}
		return h, false
	}
	m.layout = Layout{LayoutFixed, h.Shards}
	if h.Changing {
		m.layout.State = LayoutChanging
	}
	return h, true
}

// observeMissing records that the Lease does not exist.
func (m *layoutMachine) observeMissing() { m.layout = Layout{State: LayoutNone} }

// holderFor returns the holder to write for a leader, or for a release if the leader is empty. It returns false if the
// release removes the layout.
func (m *layoutMachine) holderFor(leader string) (h Holder, keeps bool) {
	if leader == "" && m.change == allowed {
		return Holder{}, false
	}
	h = Holder{Shards: m.configured, Changing: leader != "" && m.change != noChange, Leader: leader}
	if m.layout.IsRecorded() {
		h.Shards = m.layout.Shards
	}
	return h, true
}

// wrote is called after the holder was written.
func (m *layoutMachine) wrote(h Holder) {
	if !m.layout.IsRecorded() && h.Leader != "" {
		m.fresh = h.Shards
	}
	m.observe(h.String())
}

// takeFresh returns the number of shards of a layout that this member has recorded first. It reports false if it was
// called before.
func (m *layoutMachine) takeFresh() (count int, fresh bool) {
	count, m.fresh = m.fresh, 0
	return count, count > 0
}

// announce makes the following renewals announce a change.
func (m *layoutMachine) announce() { m.change = max(m.change, announced) }

// allow makes the next release remove the layout. No shard may be led.
func (m *layoutMachine) allow() { m.change = allowed }

// cancel ends the announcement, unless the change has been allowed.
func (m *layoutMachine) cancel() {
	if m.change == announced {
		m.change = noChange
	}
}

// endTerm is called when this member has stepped down as the leader of the fleet.
func (m *layoutMachine) endTerm() { m.change = noChange }
