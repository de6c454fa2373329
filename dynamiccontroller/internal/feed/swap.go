package feed

import (
	"maps"
	"slices"
)

// swap replaces all options of a feed:
//
//	            the new watch has synced,          all objects           the secondaries
//	            or the watch stays the same     have been passed on     have been matched
//	swapWaiting ────────────────────────▶ swapEffective ─▶ swapQueued ─────────▶ swapDone
//	     │                                      │                                   ▲
//	     │ another swap begins                  │ another swap begins               │ all objects
//	     ▼                                      ▼                                   │ have been passed on
//	swapSuperseded                         swapMatched ─────────────────────────────┘
//
// While a swap is waiting, the previous options are in effect. A swap that has taken effect is never superseded: before
// the next one begins, its secondaries are matched, because its options stay in effect until the next ones do. The
// states do not depend on whether the feed is attached. If a run ends in any state, the initial sync that the swap has
// begun ends with it, and the swap continues. The initial sync of the next run then waits for the secondaries.
type swap struct {
	next  *Options
	state swapState
	// settled is closed when the options have taken effect, or when the swap is superseded.
	settled chan struct{}
	// secondaries holds the sources that the feed will have. AddWatches and RemoveWatches update it.
	secondaries map[Key]*Source
	// initialSync is the one that the swap has begun. It is nil if the swap has not begun one, because the feed is
	// detached or has not passed on the primary source's existing objects yet.
	initialSync *initialSync
}

type swapState int

const (
	swapWaiting   swapState = iota // for the new watch
	swapEffective                  // the new options are in effect, and all objects are being passed on
	swapQueued                     // all objects have been passed on
	swapMatched                    // the secondaries match the options, and objects are still being passed on
	swapDone
	swapSuperseded // by another swap, before the options took effect
)

func newSwap(next *Options) *swap {
	s := &swap{next: next, settled: make(chan struct{}), secondaries: map[Key]*Source{}}
	for _, source := range next.Secondaries {
		s.secondaries[source.Key()] = source
	}
	return s
}

// add adds a source. If a source with the same key can keep its watch, that source's transform and indexes are kept.
func (s *swap) add(source *Source) {
	if former := s.secondaries[source.Key()]; former != nil && former.keepsWatch(source) {
		merged := *source
		merged.Watch.Transform = former.Watch.Transform
		merged.Watch.Indexes = former.Watch.Indexes.With(source.Watch.Indexes)
		source = &merged
	}
	s.secondaries[source.Key()] = source
}

// Swap replaces the options. If the primary source needs another watch, the options take effect when that watch has
// synced. A swap that has not taken effect yet is superseded. The returned channel is closed when the swap has begun.
func (f *Feed) Swap(next *Options) (begun <-chan struct{}) {
	s := newSwap(next)
	f.mu.Lock()
	f.newest = s
	f.mu.Unlock()
	return f.apply(change{all: true, f: func() { f.begin(s) }})
}

// advanceLocked is the transition function of swaps: it is the only place where the state of a swap changes. It reports
// whether the swap was in a state from which it can get to the other one.
func (f *Feed) advanceLocked(s *swap, to swapState) bool {
	switch {
	case to == swapEffective && s.state == swapWaiting:
		close(s.settled)
		if f.isAttachedLocked() {
			f.pauseForSwapLocked(s)
		}
		f.options.Store(s.next)
	case to == swapQueued && s.state == swapEffective:
		f.finishInitialSyncLocked(s)
	case to == swapQueued && s.state == swapMatched:
		f.finishInitialSyncLocked(s)
		to = swapDone
	case to == swapMatched && s.state == swapEffective:
		f.swap = nil
	case to == swapMatched && s.state == swapQueued:
		f.swap, to = nil, swapDone
	case to == swapSuperseded && s.state == swapWaiting:
		close(s.settled)
		f.swap = nil
	default:
		return false
	}
	s.state = to
	return true
}

// finishInitialSyncLocked ends the initial sync that the swap has begun, unless a run has ended in between.
func (f *Feed) finishInitialSyncLocked(s *swap) {
	if s.initialSync != nil && s.initialSync == f.initialSync {
		f.initialSync.finishLocked(f.primary)
	}
}

// begin begins a swap, after ending the one before. Like addSecondaries, removeSecondaries and attach, it may only be
// called as part of a change.
func (f *Feed) begin(s *swap) {
	f.primary.CancelReplace() // afterwards, the last swap does not take effect any more
	f.mu.Lock()
	last := f.swap
	if last != nil {
		f.advanceLocked(last, swapSuperseded)
	}
	f.mu.Unlock()
	if last != nil {
		f.finish(last)
	}
	f.mu.Lock()
	f.swap = s
	same := f.options.Load().Primary.sameWatch(s.next.Primary)
	f.mu.Unlock()
	if same {
		s.next.Primary.update(f.primary, s.next.Primary.Watch.Indexes)
		f.takeEffect(s)
		f.queued(s)
		f.finish(s)
		return
	}
	f.primary.Replace(s.next.Primary.options(), func() { f.takeEffect(s) }, func() {
		f.queued(s)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.insertChangeLocked(min(1, len(f.changes)), change{all: true, f: func() { f.finish(s) }})
	})
}

// takeEffect puts the options into effect and passes on all objects. It can be called while the primary subscription is
// being replaced.
func (f *Feed) takeEffect(s *swap) {
	f.effects.Lock()
	defer f.effects.Unlock()
	f.mu.Lock()
	takesEffect := f.advanceLocked(s, swapEffective)
	attached := f.isAttachedLocked()
	f.mu.Unlock()
	if !takesEffect {
		return
	}
	if s.next.Effect != nil {
		s.next.Effect()
	}
	if attached {
		f.target.AddAllAfterSwap()
	}
}

// queued must be called once all objects, including those that differ between the watches, have been passed on.
func (f *Feed) queued(s *swap) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.advanceLocked(s, swapQueued)
}

// finish adds and removes secondaries so that they match the new options. It does nothing if the swap has not taken
// effect or is already done.
func (f *Feed) finish(s *swap) {
	f.mu.Lock()
	unfinished := s.state == swapEffective || s.state == swapQueued
	sources := slices.Collect(maps.Values(s.secondaries))
	f.mu.Unlock()
	if !unfinished {
		return
	}
	_ = f.addSecondaries(sources, false, Caller{})
	f.removeSecondaries(f.unlisted(s))
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.advanceLocked(s, swapMatched) && f.initialSync != nil {
		f.initialSync.checkLocked()
	}
}

// unlisted returns the keys of the secondaries that the swap's options do not include.
func (f *Feed) unlisted(s *swap) (keys []Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.next.KeepSecondaries {
		return nil
	}
	for key := range f.secondaries {
		if s.secondaries[key] == nil {
			keys = append(keys, key)
		}
	}
	return keys
}

// pauseForSwapLocked pauses the target until all objects have been passed on, because an object can also be passed on
// by a difference between two watches and by the initial lists of new secondaries. An initial sync that still waits for
// the primary subscription is continued.
func (f *Feed) pauseForSwapLocked(s *swap) {
	current := f.initialSync
	if current != nil && current.primaryDone.IsZero() {
		return
	}
	f.beginInitialSyncLocked(nil)
	s.initialSync = f.initialSync
	if current != nil {
		maps.Copy(f.initialSync.waiting, current.waiting)
	}
}
