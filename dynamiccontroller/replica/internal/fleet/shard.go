package fleet

import (
	"slices"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// Shard decides what a member does for one shard. It does nothing itself: Step returns commands, and the member reports
// what has ended. It reads no clocks, and is not safe for concurrent use.
//
// The plan assigns the shard to two copies, which keep it warm and campaign for its Lease. The Lease decides which one
// leads. Another member can be about to replace a copy: it keeps the shard warm, too. A copy campaigns at once, and
// need not have synced.
//
//	        assigned           is a copy               Lease acquired
//	(none) ----------> Warm ------------> Candidate ------------------> Leading
//	   ^                |   ^               |   ^                       | | ^
//	   | not assigned   |   | returned      |   '------ term lost ------' | | refused, or not to
//	   |                v   |               |                             | | be moved any more
//	   '------- (cooling)   '-- (ending) <--' not a copy any more         v |
//	                               ^  ^                                Draining
//	                               |  '---- drained --------------------- '
//	                               '------- must not lead --- Leading
//
// A move that was refused is not tried again for some time. The code has one variable for each of the three: warmth,
// campaign (from candidate to ending) and drain. The states in parentheses take as long as runnables need to return. A
// shard is warm until its campaign has ended.
type Shard struct {
	index         int
	leaseDuration time.Duration

	warmth, campaign activity
	drain            drainState
	keptUntil        time.Time // the shard is not moved until then
	orphaned         time.Time // when the shard was first observed to be orphaned, zero if it is not
	held             time.Time // when the plan was first observed to hold the shard back, zero if it does not
}

// activity is something that takes time to end.
type activity int

const (
	stopped activity = iota
	running
	stopping
)

// drainState is the state of the work of a shard that is to be moved.
type drainState int

const (
	notDrained drainState = iota
	draining
	drained    // the running work has returned, and no other begins
	cancelling // the shard is not to be moved any more
)

const (
	// KeepPeriods is the time for which a shard is not moved after it could not be drained, in multiples of LeaseDuration.
	KeepPeriods = 4
	// OrphanPeriods is the time after which a member leads a shard without a plan, in multiples of LeaseDuration. By
	// then, the Lease of a crashed leader has expired, and a working leader of the fleet has published another plan.
	OrphanPeriods = 2
	// maxHeld is the longest time for which a shard is held back without another plan, in multiples of LeaseDuration.
	maxHeld = 2 * suspectPeriods << (maxCrashes - minCrashes)
)

// NewShard returns the shard with an index.
func NewShard(index int, leaseDuration time.Duration) *Shard {
	return &Shard{index: index, leaseDuration: leaseDuration}
}

// Index returns the index of the shard.
func (s *Shard) Index() int { return s.index }

// Facts are what a member observes of a shard.
type Facts struct {
	Now    time.Time
	Self   string // the identity of the member
	Layout Layout // that of the fleet; its state is LayoutFixed only if the shard belongs to it
	// ExclusionLost is nil while it is certain that replicas without shards do not lead; see [Exclusion.Check].
	ExclusionLost error
	Assignment    plan.Assignment
	Fleet         *Snapshot
	Leading       bool // a term of the shard is current
}

// Command is what a member must do for a shard.
type Command int

const (
	LoseTerm      Command = iota // end the term at once, because somebody else may be able to lead
	StartWarming                 // start the runnables of a warm shard
	StopWarming                  // stop them
	StartCampaign                // campaign for the Lease, and lead
	StopCampaign                 // end the campaign, in order
	StartDrain                   // begin to drain the runnables
	CancelDrain                  // stop waiting for them
	Resume                       // resume the runnables, which have been drained
	RequestLease                 // send the next request for the Lease now
)

// order is what a member should do according to the plan and the Leases.
type order struct {
	warm, campaign bool
	move           bool // the campaign should end because another member is to lead
	expected       bool // the Lease was released, and this member should acquire it
	lose           bool // the term must end at once
}

// order is the table of the rules.
func (s *Shard) order(f Facts) order {
	a := f.Assignment
	holder, known := f.Fleet.Holders[s.index]
	isCopy := a.Leader == f.Self || a.Standby == f.Self
	o := order{
		warm:     isCopy || a.Warming == f.Self,
		campaign: isCopy,
		expected: a.Leader == f.Self && known && holder == "",
	}
	switch {
	case f.Layout.State == LayoutNone:
		return order{lose: f.ExclusionLost != nil}
	case f.Layout.State != LayoutFixed:
		return order{}
	case s.isHeld(f): // also if this member leads the shard
		return order{}
	case a.Unled != plan.UnledCapacity && s.adopts(f):
		o.warm, o.campaign = true, true
	}
	switch {
	case f.ExclusionLost != nil:
		o.campaign, o.lose = false, true
	case f.Leading: // whatever the plan says, until another member is ready
		o.move = a.From == f.Self && f.Fleet.IsReady(a.Leader, s.index, f.Layout.Shards)
		o.campaign = !o.move
	}
	return o
}

// isHeld reports whether the plan holds the shard back. This ends after maxHeld, because the planner can have failed.
func (s *Shard) isHeld(f Facts) bool {
	switch {
	case f.Assignment.Unled != plan.UnledHeld:
		s.held = time.Time{}
		return false
	case s.held.IsZero():
		s.held, s.orphaned = f.Now, time.Time{}
	}
	return f.Now.Sub(s.held) < maxHeld*s.leaseDuration
}

// adopts reports whether this member leads an orphaned shard without a plan, because a missing plan must not leave the
// shard without a leader.
func (s *Shard) adopts(f Facts) bool {
	holder := f.Fleet.Holders[s.index]
	mine := holder == f.Self // this member has acquired the Lease without a plan, and may have lost it
	if mine {
		holder = ""
	}
	switch {
	case !f.Fleet.isOrphaned(f.Assignment, holder):
		s.orphaned = time.Time{}
		return false
	case s.orphaned.IsZero():
		s.orphaned = f.Now
	}
	return f.Now.Sub(s.orphaned) >= OrphanPeriods*s.leaseDuration &&
		(mine || f.Fleet.successor(s.index, f.Layout.Shards) == f.Self)
}

// Step returns what the member must do now, in order.
func (s *Shard) Step(f Facts) (commands []Command) {
	do := func(c Command) { commands = append(commands, c) }
	o := s.order(f)
	if o.lose {
		do(LoseTerm)
	}
	warm := o.warm || s.campaign != stopped // until the runnables of the term have returned
	switch {
	case s.warmth == stopped && warm:
		s.warmth = running
		do(StartWarming)
	case s.warmth == running && !warm:
		s.warmth = stopping
		do(StopWarming)
	}
	if s.campaign == stopped || s.campaign == running && !o.move {
		commands = append(commands, s.endDrain()...)
	}
	switch {
	case s.campaign == stopped && o.campaign && s.warmth == running && s.drain == notDrained:
		s.campaign = running
		do(StartCampaign)
	case s.campaign != running || o.campaign:
	case !o.move || s.drain == drained:
		s.campaign = stopping
		do(StopCampaign)
	case s.drain == notDrained && !s.IsKept(f.Now):
		s.drain = draining
		do(StartDrain)
	}
	if o.expected && s.campaign != stopped && !f.Leading {
		do(RequestLease)
	}
	return commands
}

// endDrain ends the drain of a shard that has been moved, or is not to be moved any more.
func (s *Shard) endDrain() []Command {
	switch s.drain {
	case draining:
		s.drain = cancelling
		return []Command{CancelDrain}
	case drained:
		s.drain = notDrained
		return []Command{Resume}
	default:
		return nil
	}
}

// CampaignEnded records that the campaign, its term and its runnables have ended.
func (s *Shard) CampaignEnded() { s.campaign = stopped }

// WarmingFailed records that a runnable of the warm shard has failed, and that all of them have been stopped.
func (s *Shard) WarmingFailed() { s.warmth = stopping }

// WarmingEnded records that the runnables of the warm shard have returned.
func (s *Shard) WarmingEnded() { s.warmth = stopped }

// DrainEnded records that the work of the shard has returned, or that it has not, in time. In the latter case, the
// runnables have been resumed. Unless the drain was cancelled, the shard is then not moved for the returned time.
func (s *Shard) DrainEnded(returned bool, now time.Time) (kept time.Duration) {
	cancelled := s.drain == cancelling
	s.drain = notDrained
	switch {
	case returned: // also if it was cancelled: Step resumes the runnables
		s.drain = drained
	case !cancelled:
		kept = KeepPeriods * s.leaseDuration
		s.keptUntil = now.Add(kept)
	}
	return kept
}

// IsKept reports whether the shard must not be moved, because it could not be drained.
func (s *Shard) IsKept(now time.Time) bool { return now.Before(s.keptUntil) }

// CanLead reports whether the shard is kept warm, and can be led.
func (s *Shard) CanLead() bool {
	return s.warmth == running && (s.campaign == running || s.drain == notDrained)
}

// IsIdle reports whether nothing is running for the shard. A drain that was cancelled ends by itself.
func (s *Shard) IsIdle() bool {
	return s.warmth == stopped && s.campaign == stopped && (s.drain == notDrained || s.drain == cancelling)
}

// IsReady reports whether a member is alive, and keeps a shard of a layout warm.
func (s *Snapshot) IsReady(identity string, index, layout int) bool {
	member, ok := s.Member(identity)
	return ok && !member.State.Leaving && member.State.Layout == layout && slices.Contains(member.State.Warm, index)
}
