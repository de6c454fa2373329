package fairqueue

import "time"

// rescheduleLocked puts the group where its earliest delayed item belongs, and the timer to the earliest of all.
func (q *Queue[T, K, V]) rescheduleLocked(g *group[T, K, V]) {
	switch {
	case g.delays.len() == 0:
		if g.delaysAt < 0 {
			return
		}
		q.delays.remove(g.delaysAt)
	case g.delaysAt < 0:
		q.delays.push(g)
	default:
		q.delays.fix(g.delaysAt)
	}
	q.armLocked()
}

// armLocked sets the timer to the earliest delay, or stops it.
func (q *Queue[T, K, V]) armLocked() {
	if q.inFire {
		return
	}
	var due time.Time
	if q.delays.len() > 0 {
		due = q.delays.first().delays.first().due
	}
	if due.Equal(q.armed) {
		return
	}
	if !q.armed.IsZero() && q.timer.Stop() {
		q.firing.Done()
	}
	q.armed = due
	if !due.IsZero() {
		q.firing.Add(1)
		q.timer = time.AfterFunc(time.Until(due), q.fire)
	}
}

// fire adds what is due.
func (q *Queue[T, K, V]) fire() {
	defer q.firing.Done()
	q.mu.Lock()
	defer q.mu.Unlock()
	// A callback that lost the race against Stop finds the timer set anew: adding what is due is right all the same.
	now := time.Now()
	q.inFire = true
	for q.delays.len() > 0 {
		g := q.delays.first()
		it := g.delays.first()
		if it.due.After(now) {
			break
		}
		q.addLocked(g, it.key, Live)
	}
	q.inFire = false
	if !q.armed.IsZero() && !q.armed.After(now) {
		q.armed = time.Time{}
	}
	q.armLocked()
}
