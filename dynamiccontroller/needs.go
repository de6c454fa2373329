package dynamiccontroller

import (
	"maps"
	"slices"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// watchOf is the registration's need of its own type.
func (c *DynamicController) watchOf(reg *registration) *typewatch.Need {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return reg.primary
}

// needsOf are the registration's need of its own type and its secondaries.
func (c *DynamicController) needsOf(reg *registration) (*typewatch.Need, []*secondary) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return reg.primary, slices.Collect(maps.Values(reg.secondaries))
}

// shutLocked holds what is queued of the type until its lists have been told.
func (reg *registration) shutLocked() {
	others := make([]any, 0, len(reg.secondaries))
	for _, s := range reg.secondaries {
		others = append(others, s)
	}
	reg.gate.shut(reg.primary, others...)
}

// needLocked gives the registration the need that the options ask for, in place of the one that it has.
func (c *DynamicController) needLocked(reg *registration, next *served) (left leavings) {
	before := reg.primary
	if before != nil && reg.served.Load().sameWatch(&next.watchOptions) {
		return nil
	}
	// The new one first, so that a watch that serves both goes on.
	reg.primary = c.pool.Acquire(typewatch.Want{Spec: next.spec, Transform: next.transform, After: before})
	if before != nil {
		left = append(left, c.releaseLocked(reg, before, reg.primary))
	}
	return left
}

// secondariesLocked gives the registration the secondaries that the options ask for, in place of those that it has.
func (c *DynamicController) secondariesLocked(reg *registration, wanted []*secondaryOptions) (left leavings) {
	next := make(map[secondaryKey]*secondary, len(wanted))
	for _, options := range wanted {
		s, gone := c.secondaryLocked(reg, options)
		left = append(left, gone...)
		next[options.key] = s
		// If it is asked for twice the last one counts.
		if reg.secondaries == nil {
			reg.secondaries = map[secondaryKey]*secondary{}
		}
		reg.secondaries[options.key] = s
	}
	for key, s := range reg.secondaries {
		if next[key] == nil {
			left = append(left, c.releaseLocked(reg, s.need, nil))
		}
	}
	reg.secondaries = next
	return left
}

// secondaryLocked returns the registration's secondary for the options: the one there is if its watch will do, or a new
// one, and then what is left of the one before.
func (c *DynamicController) secondaryLocked(reg *registration, options *secondaryOptions) (s *secondary, left leavings) {
	before := reg.secondaries[options.key]
	if before != nil && before.options.Load().sameWatch(&options.watchOptions) {
		before.options.Store(options)
		return before, nil
	}
	s = &secondary{key: options.key, reg: reg}
	s.options.Store(options)
	want := typewatch.Want{Spec: options.spec, Transform: options.transform, Observe: func(state typewatch.State) { reg.gate.observe(s, state) }}
	if before == nil {
		s.need = c.pool.Acquire(want)
		return s, nil
	}
	want.After = before.need
	reg.gate.exchange(before, s)
	s.need = c.pool.Acquire(want)
	return s, leavings{c.releaseLocked(reg, before.need, s.need)}
}
