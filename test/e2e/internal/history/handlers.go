package history

// handleAlone: handlers begin in a term of their replica's and while no other leads, one at a time for an object, and the
// lease is not released while one runs.
func (c *checker) handleAlone() {
	current := map[string]*term{}
	for _, t := range c.terms {
		current[t.who] = nil
	}
	next := 0
	for _, e := range c.events {
		for ; next < len(c.terms) && c.terms[next].from <= e.At; next++ {
			current[c.terms[next].who] = c.terms[next]
		}
		open := c.open[e.Who]
		if open == nil {
			open = map[string]Event{}
			c.open[e.Who] = open
		}
		switch e.Kind {
		case Begin:
			c.report.Handlers++
			if before, runs := open[e.Object]; runs {
				c.violation(e, "a handler begins for %s while the one that began at %s runs", e.Object, at(before.At))
			}
			open[e.Object] = e
			switch t := current[e.Who]; {
			case t == nil || e.At > t.returned:
				c.violation(e, "a handler begins for %s outside of any term", e.Object)
			case t.lost < never && e.At > t.lost.Add(c.rules.Slack):
				c.violation(e, "a handler begins for %s, and the lease was lost at %s", e.Object, at(t.lost))
			}
			c.beginsAlone(e)
		case End:
			if _, runs := open[e.Object]; !runs {
				c.violation(e, "a handler for %s ends that has not begun", e.Object)
			}
			delete(open, e.Object)
		case Release:
			for object, begun := range open {
				c.violation(e, "the lease is released while the handler for %s runs that began at %s", object, at(begun.At))
			}
		}
	}
}

func (c *checker) beginsAlone(e Event) {
	for _, t := range c.terms {
		if t.who == e.Who || e.At < t.from || e.At >= t.until {
			continue
		}
		switch {
		case c.taken(e.At):
			c.report.Excused++
		case c.thawed(e):
			c.report.Thawed++
		default:
			c.violation(e, "a handler begins for %s while %s leads in its term %d", e.Object, t.who, t.number)
		}
	}
}

// startOnce: the per-replica half begins once a process.
func (c *checker) startOnce() {
	begun := map[string]bool{}
	for _, e := range c.events {
		if e.Kind != Watches {
			continue
		}
		if begun[e.Who] {
			c.violation(e, "its per-replica half begins again")
		}
		begun[e.Who] = true
	}
}

// reconcileLast: some handler saw each object's last change, and was done with it.
func (c *checker) reconcileLast() {
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
			c.violation(e, "change %d of %s was never reconciled; the last that was is %d", e.N, object, done[object])
		}
	}
}
