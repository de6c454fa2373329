package fairqueue

import "time"

const (
	// While both lanes have items, every backgroundShare-th item is taken from the background lane.
	backgroundShare = 8
	// fastAlpha is the alpha of the dynamic threshold for groups whose items finish quickly.
	fastAlpha = 8
	// slowRun is the duration after which a running item is considered slow.
	slowRun = time.Second
)

// pickLocked returns the first group in the ring that may take an idle worker, or nil.
func (q *Queue[T, K, N, V]) pickLocked() *group[T, K, N, V] {
	for g := range q.ring.all() {
		if q.allowedLocked(g) {
			return g
		}
	}
	return nil
}

// allowedLocked reports whether the dynamic threshold allows the group to take another idle worker.
func (q *Queue[T, K, N, V]) allowedLocked(g *group[T, K, N, V]) bool {
	running := g.running.len
	switch {
	case running == 0, q.busy == 0: // if busy is 0, all running items were handed out before the last Restart
		return true
	case q.idle == 1:
		return false
	case running < q.idle:
		return true
	case running >= fastAlpha*q.idle || !g.session.returned:
		return false
	default:
		return q.now()-g.running.head.value.since <= slowRun
	}
}

// wakeLocked wakes an idle worker if a group can hand out an item. Only one worker is woken at a time. After taking an
// item, that worker wakes the next one.
func (q *Queue[T, K, N, V]) wakeLocked() {
	if !q.waking && q.idle > 0 && q.pickLocked() != nil {
		q.waking = true
		q.available.Signal()
	}
}

// takeLocked hands out the group's next item. The turn ends when the group runs out of credit or waiting items.
func (q *Queue[T, K, N, V]) takeLocked(g *group[T, K, N, V]) (it *item[T, K, N, V], waited time.Duration) {
	lane := Live
	switch {
	case g.background.len == 0:
		g.liveTurns = 0
	case g.live.len == 0 || g.liveTurns >= backgroundShare-1:
		lane, g.liveTurns = Background, 0
	default:
		g.liveTurns++
	}
	if lane == Live {
		it = g.live.head.value
		g.live.remove(&it.element)
	} else {
		it = q.itemLocked(g, g.background.pop())
		it.queued = false
		g.leaveBackgroundLocked()
	}
	q.waiting--
	waited = q.now() - it.since
	q.endDelayLocked(g, it)
	it.queued, it.session, it.since, it.term = false, g.session, it.since+waited, q.term
	g.running.pushBack(&it.element)
	q.running++
	q.busy++

	g.credit--
	if g.credit == 0 || g.waitingLocked() == 0 {
		g.credit = 0
		q.ring.remove(&g.element)
	}
	q.placeLocked(g)
	return it, waited
}

// placeLocked adds the group to the ring or removes it, as required. The group joins at the tail with credit for a new
// turn, or at the head if its turn was interrupted.
func (q *Queue[T, K, N, V]) placeLocked(g *group[T, K, N, V]) {
	s := g.session
	eligible := s != nil && !s.paused && g.waitingLocked() > 0 &&
		(s.limits.Concurrency < 1 || g.running.len < s.limits.Concurrency)
	switch {
	case eligible == (g.next != nil): // already in place
	case !eligible:
		q.ring.remove(&g.element)
	case 0 < g.credit && g.credit < s.limits.Weight:
		q.ring.pushFront(&g.element)
	default:
		g.credit = s.limits.Weight
		q.ring.pushBack(&g.element)
	}
}
