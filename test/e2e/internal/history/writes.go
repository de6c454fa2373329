package history

import (
	"slices"
	"strconv"
	"time"
)

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

// checkLeases checks that no write passes the fence without the term of a lease, and that all handler calls for an
// object belong to the same lease. It counts the rejected writes that belong to no lease.
func (c *checker) checkLeases() {
	named := slices.ContainsFunc(c.events, func(e Event) bool { return e.Lease != "" })
	if !named {
		return
	}
	leases := map[string]string{} // By object.
	for _, e := range c.events {
		switch {
		case e.Kind == Sent && e.Lease == "":
			c.violation(e, "write %d of %s passed the fence without a term", e.ID, e.Object)
		case e.Kind == Wrote && e.Lease == "":
			c.report.Rejected++
		case e.Kind == Begin && e.Lease == "":
			c.violation(e, "handler for %s called without a shard", e.Object)
		case e.Kind == Begin && leases[e.Object] == "":
			leases[e.Object] = e.Lease
		case e.Kind == Begin && leases[e.Object] != e.Lease:
			c.violation(e, "handler for %s called in a term of %s, and before in one of %s", e.Object, e.Lease, leases[e.Object])
		}
	}
}

// explainLateWrites counts the writes that took effect when their writer no longer held the lease, by reason. A late
// write without a reason is a violation. Writes are late if their resourceVersion is higher than that of the lease. The
// test can miss versions of the lease while it is disconnected, so the renewals that replicas report count as well.
func (c *checker) explainLateWrites() {
	identity, handled, confirmed := map[string]string{}, map[string]bool{}, map[attempt]bool{}
	holders := map[int64]Event{}
	for _, e := range c.events {
		switch e.Kind {
		case Started:
			identity[e.Process] = e.Holder
		case Held:
			holders[number(e.Version)] = e
		case Begin:
			handled[e.Object] = true
		case Renewed:
			confirmed[attempt{e.Process, e.ID}] = true
		}
	}
	sent := map[[2]string]Event{} // The last write, by process and object.
	renewer := ""                 // The process that has sent the last confirmed renewal.
	for _, e := range c.events {
		key := [2]string{e.Process, e.Object}
		switch e.Kind {
		case Sent:
			sent[key] = e
		case Renew:
			if confirmed[attempt{e.Process, e.ID}] {
				renewer = e.Process
			}
		case Release, Forced:
			renewer = ""
		case Arrived:
			holder, known := holderBefore(holders, number(e.Version))
			if e.Process != renewer && known && holder.Holder != identity[e.Process] {
				c.countLateWrite(sent[key], e, holder, handled[e.Object])
			}
		}
	}
}

// holderBefore returns the holder of the lease when an object got a version.
func holderBefore(holders map[int64]Event, version int64) (holder Event, known bool) {
	newest := int64(-1)
	for v, h := range holders {
		if v < version && v > newest {
			newest, holder = v, h
		}
	}
	return holder, newest >= 0
}

// countLateWrite counts a late write, or reports it as a violation. The holder is the event of its lease.
func (c *checker) countLateWrite(sent, arrived, holder Event, handled bool) {
	reason := c.reasonForLateWrite(sent, arrived, handled)
	if delay := c.rules.ServerDelay; delay > 0 {
		reason = ""
		if arrived.At < holder.At.Add(delay) {
			reason = "within the delay of the API server"
		}
	}
	if reason == "" {
		c.violation(arrived, "write %d of %s, sent at %s, took effect when %q held the lease",
			sent.ID, arrived.Object, at(sent.At), holder.Holder)
		return
	}
	c.report.late(reason, 1)
}

// reasonForLateWrite returns why a write took effect late, or an empty string. The terms of a replica end only after
// its handler calls have returned, but do not wait for other writes, which can therefore be in flight.
func (c *checker) reasonForLateWrite(sent, arrived Event, handled bool) string {
	const inFlight = Time(time.Second)
	period := span{sent.At, arrived.At}
	switch {
	case sent.At == 0:
		return ""
	case overlaps(c.stops[sent.Process], period):
		return "stopped before sending"
	case overlaps(c.stalls[sent.Process], period):
		return "delayed by a partition"
	case c.isForced(arrived.At) || c.taken(arrived.At):
		return "after a lease change"
	case !handled && arrived.At-sent.At < inFlight:
		return "in flight at the end of the term"
	}
	return ""
}

// isForced reports whether the test had just changed the lease by force at time t.
func (c *checker) isForced(t Time) bool {
	return slices.ContainsFunc(c.forced, func(e Event) bool {
		return e.Lease == c.name && span{e.At, e.At.Add(c.rules.AfterTake)}.has(t)
	})
}

func number(version string) int64 {
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return 0 // No object has this version.
	}
	return n
}
