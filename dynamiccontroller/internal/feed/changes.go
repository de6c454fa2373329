package feed

import (
	"slices"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// change is a pending change to the subscriptions. Changes are applied one at a time, in their order, in the
// background.
type change struct {
	f    func()
	keys []Key // the secondaries that f may add, replace or remove
	all  bool  // f may replace or remove any secondary
}

// apply applies a change in the background, after all earlier changes, and then closes the returned channel.
func (f *Feed) apply(c change) (done <-chan struct{}) {
	applied, apply := make(chan struct{}), c.f
	c.f = func() { apply(); close(applied) }
	f.mu.Lock()
	defer f.mu.Unlock()
	f.insertChangeLocked(len(f.changes), c)
	return applied
}

func (f *Feed) insertChangeLocked(at int, c change) {
	f.changes = slices.Insert(f.changes, at, c)
	if len(f.changes) == 1 {
		f.backgroundLocked(f.applyChanges)
	}
}

func (f *Feed) applyChanges() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.changes) > 0 {
		current := f.changes[0]
		f.mu.Unlock()
		current.f()
		f.mu.Lock()
		f.changes = slices.Delete(f.changes, 0, 1)
	}
}

// BlockChanges makes later changes wait until unblock is called. It is meant for tests.
func (f *Feed) BlockChanges() (unblock func()) {
	blocked := make(chan struct{})
	f.apply(change{f: func() { <-blocked }})
	return func() { close(blocked) }
}

// isChangingLocked reports whether a pending change may add, replace or remove the secondary with the key.
func (f *Feed) isChangingLocked(key Key) bool {
	return slices.ContainsFunc(f.changes, func(c change) bool { return c.all || slices.Contains(c.keys, key) })
}

// backgroundLocked calls task in a goroutine. The feed does not end until task has returned.
func (f *Feed) backgroundLocked(task func()) {
	f.tasks++
	go func() {
		defer f.release()
		task()
	}()
}

// release records that a task has ended.
func (f *Feed) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tasks--; f.closed && f.tasks == 0 && !typewatch.IsClosed(f.ended) { // a late change can begin after the end
		close(f.ended)
	}
}
