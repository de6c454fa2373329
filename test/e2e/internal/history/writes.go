package history

import "strconv"

// attempt identifies one attempt of a request.
type attempt struct {
	process string
	id      int64
}

// checkWrites checks the writes that passed the fence. Each of these writes must have started before the last renewal
// expired, after the last loss or release of the lease, in the current term, and while no other replica was leading.
func (c *checker) checkWrites() {
	current := map[string]int64{} // The term of each process.
	currentAt := map[attempt]int64{}
	for _, e := range c.events {
		id := attempt{e.Process, e.ID}
		switch e.Kind {
		case Leads:
			current[e.Process] = e.Term
		case Write:
			c.writes[id] = e
			currentAt[id] = current[e.Process]
		case Sent:
			c.report.Writes++
			started, ok := c.writes[id]
			if !ok {
				c.violation(e, "write %d was sent before it started", e.ID)
				continue
			}
			c.checkWrite(started, currentAt[id])
			c.writes[id] = e
		case Wrote:
			switch sent := c.writes[id].Kind == Sent; {
			case e.Error == "":
			case sent:
				c.report.Interrupted++
			default:
				c.report.Rejected++
			}
		}
	}
}

// checkWrite checks a write that passed the fence. Only the time at which the write started matters.
func (c *checker) checkWrite(e Event, current int64) {
	l := c.leaseOf(e.Process)
	confirmed, ended := last(l.confirmed, e.At), last(l.ends, e.At)
	switch {
	case confirmed.Add(c.rules.Certain) <= e.At:
		c.violation(e, "write %d of %s passed the fence although the last confirmed renewal was sent at %s",
			e.ID, e.Object, at(confirmed))
	case confirmed < ended:
		c.violation(e, "write %d of %s passed the fence, which was closed at %s", e.ID, e.Object, at(ended))
	case e.Term > 0 && e.Term < current:
		c.violation(e, "write %d of %s passed the fence from term %d in term %d", e.ID, e.Object, e.Term, current)
	case c.taken(e.At):
	default:
		for _, t := range c.terms {
			if t.process != e.Process && t.from <= e.At && e.At < t.until {
				c.violation(e, "write %d of %s passed the fence while %s leads in its term %d",
					e.ID, e.Object, t.process, t.number)
			}
		}
	}
}

// countLateWrites counts the writes that took effect when their writer no longer held the lease. It compares the
// resourceVersions of the writes with those of the lease.
func (c *checker) countLateWrites() {
	identity := map[string]string{}
	holders := map[int64]string{}
	for _, e := range c.events {
		switch e.Kind {
		case Started:
			identity[e.Process] = e.Holder
		case Held:
			holders[number(e.Version)] = e.Holder
		}
	}
	for _, e := range c.events {
		if e.Kind != Arrived {
			continue
		}
		arrived, newest, holder := number(e.Version), int64(-1), ""
		for version, h := range holders {
			if version < arrived && version > newest {
				newest, holder = version, h
			}
		}
		if newest >= 0 && holder != identity[e.Process] {
			c.report.Late++
		}
	}
}

func number(version string) int64 {
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return 0 // No object has this version.
	}
	return n
}
