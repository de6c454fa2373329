package history

import "slices"

// checkHandlers checks three rules. A handler call starts only in a term of its replica and while no other replica
// leads. Calls for the same object do not overlap. The lease is not released while a handler is running.
func (c *checker) checkHandlers() {
	current := map[string]*term{}
	for _, t := range c.terms {
		current[t.process] = nil
	}
	next := 0
	for _, e := range c.events {
		for ; next < len(c.terms) && c.terms[next].from <= e.At; next++ {
			current[c.terms[next].process] = c.terms[next]
		}
		running := c.running[e.Process]
		if running == nil {
			running = map[string]Event{}
			c.running[e.Process] = running
		}
		switch e.Kind {
		case Begin:
			c.report.Handlers++
			if before, ok := running[e.Object]; ok {
				c.violation(e, "handler for %s called during the call that started at %s", e.Object, at(before.At))
			}
			running[e.Object] = e
			switch t := current[e.Process]; {
			case t == nil || e.At > t.returned:
				c.violation(e, "handler for %s called outside of a term", e.Object)
			case t.lost < never && e.At > t.lost.Add(c.rules.Slack):
				c.violation(e, "handler for %s called after the lease was lost at %s", e.Object, at(t.lost))
			}
			c.checkOtherLeaders(e)
		case End:
			if _, ok := running[e.Object]; !ok {
				c.violation(e, "handler for %s returned without a call", e.Object)
			}
			delete(running, e.Object)
		case Release:
			for object, begun := range running {
				c.violation(e, "lease released during the handler call for %s that started at %s", object, at(begun.At))
			}
		}
	}
}

// checkOtherLeaders checks that no other replica leads when a handler call starts.
func (c *checker) checkOtherLeaders(e Event) {
	for _, t := range c.terms {
		if t.process == e.Process || e.At < t.from || e.At >= t.until {
			continue
		}
		switch {
		case c.taken(e.At):
			c.report.Tolerated++
		case c.justResumed(e):
			c.report.Resumed++
		default:
			c.violation(e, "handler for %s called while %s leads in its term %d", e.Object, t.process, t.number)
		}
	}
}

// checkConcurrentCalls checks that the calls for an object do not overlap in two processes. A process that was stopped
// during a call does not notice that another one has taken over.
func (c *checker) checkConcurrentCalls() {
	running := map[string]map[string]Event{} // By object and process.
	for _, e := range c.events {
		switch e.Kind {
		case Begin:
			if running[e.Object] == nil {
				running[e.Object] = map[string]Event{}
			}
			for process, begun := range running[e.Object] {
				switch {
				case process == e.Process: // See checkHandlers.
				case c.isStopped(process, e.At):
					c.report.Suspended++
				case c.justResumed(e), c.taken(e.At):
					c.report.Overlapping++
				default:
					c.violation(e, "handler for %s called during the call in %s that started at %s", e.Object, process, at(begun.At))
				}
			}
			running[e.Object][e.Process] = e
		case End:
			delete(running[e.Object], e.Process)
		case Killed, Exit:
			for _, processes := range running {
				delete(processes, e.Process)
			}
		}
	}
}

// isStopped reports whether the process is stopped at time t, or has just been resumed.
func (c *checker) isStopped(process string, t Time) bool {
	return slices.ContainsFunc(c.stops[process], func(s span) bool {
		return s.from <= t && (s.to == never || t <= s.to.Add(c.rules.Slack))
	})
}

// checkWatches checks that the per-replica runnables start only once per process. Those of a warm shard can start
// again, after they have returned and left nothing behind.
func (c *checker) checkWatches() {
	begun := map[string]bool{}
	for _, e := range c.events {
		switch e.Kind {
		case Watches:
			if begun[e.Process] {
				c.violation(e, "watches started again")
			}
			begun[e.Process] = true
		case Left:
			begun[e.Process] = false
			if e.Error != "" {
				c.violation(e, "the watches have left something behind: %s", e.Error)
			}
		}
	}
}

// checkLastChanges checks that the last change to each object was reconciled successfully.
func (c *checker) checkLastChanges() {
	changed, done := map[string]Event{}, map[string]int64{}
	for _, e := range c.events {
		switch {
		case e.Kind == Changed && e.N >= changed[e.Object].N:
			changed[e.Object] = e
		case e.Kind == End && e.Error == "":
			done[e.Object] = max(done[e.Object], e.N)
		}
	}
	for object, e := range changed {
		if done[object] < e.N {
			c.violation(e, "change %d of %s was not reconciled; the last reconciled change is %d", e.N, object, done[object])
		}
	}
}
