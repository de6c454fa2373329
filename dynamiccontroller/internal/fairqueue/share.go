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
	case running == 0:
		return true
	case q.idle == 1:
		return false
	case running < q.idle:
		return true
	case running >= fastAlpha*q.idle || !g.opening.returned:
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
func (q *Queue[T, K, N, V]) takeLocked(g *group[T, K, N, V]) (it *item[T, K, N, V], wait Wait[T]) {
	lane := Live
	if g.turns[Live].len == 0 || g.turns[Background].len > 0 && g.liveTurns >= backgroundShare-1 {
		lane = Background
	}
	f := g.turns[lane].head.value
	g.turns[lane].rotate()
	switch due := f.liveTurns >= backgroundShare-1; {
	case f.background.len == 0:
		lane = Live
	case f.live.len == 0 || due:
		lane = Background
	default:
		lane = Live
	}
	g.liveTurns = countLive(g.liveTurns, lane, g.waiting[Background])
	f.liveTurns = countLive(f.liveTurns, lane, f.background.len)
	if lane == Live {
		it = f.live.head.value
		f.live.remove(&it.element)
		g.waiting[Live]--
	} else {
		it = q.itemLocked(g, f.background.pop(), f.name)
		it.queued = false
		g.leaveBackgroundLocked(f)
	}
	q.waiting--
	q.skipDelayLocked(g, it)
	wait = Wait[T]{For: q.now() - it.since, Cause: it.cause}
	it.queued, it.opening, it.since, it.cause = false, g.opening.number, it.since+wait.For, Cause[T]{}
	g.running.pushBack(&it.element)
	q.running++
	f.running++
	g.placeFlow(f)

	g.credit--
	if g.credit == 0 || g.waitingLocked() == 0 {
		g.credit = 0
		q.ring.remove(&g.element)
	}
	q.placeLocked(g)
	return it, wait
}

// countLive returns the number of items taken from the live lane since the last one from the background lane, after an
// item was taken. It is 0 if the background lane had no items.
func countLive(before int, lane Lane, background int) int {
	if lane == Background || background == 0 {
		return 0
	}
	return before + 1
}

// placeLocked adds the group to the ring or removes it, as required. The group joins at the tail with credit for a new
// turn, or at the head if its turn was interrupted.
func (q *Queue[T, K, N, V]) placeLocked(g *group[T, K, N, V]) {
	s := g.opening
	eligible := s != nil && !s.paused && !s.draining && g.turns[Live].len+g.turns[Background].len > 0 &&
		(s.options.Concurrency < 1 || g.runningLocked() < s.options.Concurrency)
	switch {
	case eligible == (g.next != nil): // already in place
	case !eligible:
		q.ring.remove(&g.element)
	case 0 < g.credit && g.credit < s.options.Weight:
		q.ring.pushFront(&g.element)
	default:
		g.credit = s.options.Weight
		q.ring.pushBack(&g.element)
	}
}
