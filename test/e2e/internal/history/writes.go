package history

import (
	"strconv"
)

type attempt struct {
	who string
	id  int64
}

// writeInside: what passes the fence began while a renewal allowed it, after the last loss or release, in a term that is the
// present one, and while no other replica leads.
func (c *checker) writeInside() {
	present := map[string]int64{} // term
	presentAt := map[attempt]int64{}
	for _, e := range c.events {
		id := attempt{e.Who, e.ID}
		switch e.Kind {
		case Leads:
			present[e.Who] = e.Term
		case Write:
			c.begun[id] = e
			presentAt[id] = present[e.Who]
		case Sent:
			c.report.Writes++
			begun, known := c.begun[id]
			if !known {
				c.violation(e, "write %d was sent that has not begun", e.ID)
				continue
			}
			c.passes(begun, presentAt[id])
			e.Error = "sent"
			c.begun[id] = e
		case Wrote:
			switch sent := c.begun[id].Error == "sent"; {
			case e.Error == "":
			case sent:
				c.report.Cut++
			default:
				c.report.Refused++
			}
		}
	}
}

// passes judges a write that passed the fence by when it began.
func (c *checker) passes(e Event, present int64) {
	l := c.leaseOf(e.Who)
	confirmed, ended := last(l.confirmed, e.At), last(l.ends, e.At)
	switch {
	case confirmed.Add(c.rules.Certain) <= e.At:
		c.violation(e, "write %d of %s passed the fence, and the last renewal that was confirmed was sent at %s", e.ID, e.Object, at(confirmed))
	case confirmed < ended:
		c.violation(e, "write %d of %s passed the fence, which was closed at %s", e.ID, e.Object, at(ended))
	case e.Term > 0 && e.Term < present:
		c.violation(e, "write %d of %s passed the fence from term %d in term %d", e.ID, e.Object, e.Term, present)
	case c.taken(e.At):
	default:
		for _, t := range c.terms {
			if t.who != e.Who && t.from <= e.At && e.At < t.until {
				c.violation(e, "write %d of %s passed the fence while %s leads in its term %d", e.ID, e.Object, t.who, t.number)
			}
		}
	}
}

// countLate counts the writes that took effect, by the API server's own order, when the lease was no longer their
// writer's.
func (c *checker) countLate() {
	identity := map[string]string{}
	holders := map[int64]string{}
	for _, e := range c.events {
		switch e.Kind {
		case Started:
			identity[e.Who] = e.Holder
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
		if newest >= 0 && holder != identity[e.Who] {
			c.report.Late++
		}
	}
}

func number(version string) int64 {
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return 0 // of no object that there is
	}
	return n
}
