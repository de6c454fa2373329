package reflector

import "sync"

// queue serves the types in turn, one item at a time. An item is queued at most once and is never processed
// concurrently.
type queue struct {
	mu     sync.Mutex // Guards the fields below and all lines.
	some   sync.Cond  // Signaled when a line is added to turns or the queue shuts down.
	turns  []*line    // The lines with queued items, in the order in which they are served.
	closed bool
}

// line contains the queued items of one type.
type line struct {
	handler func(key string)
	waiting []string
	known   map[string]state
	dropped bool
}

type state uint8

const (
	waiting state = iota
	running
	runningAgain // Added again while running.
)

func newQueue() *queue {
	q := &queue{}
	q.some.L = &q.mu
	return q
}

func (q *queue) add(l *line, key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s, known := l.known[key]; known {
		if s == running {
			l.known[key] = runningAgain
		}
		return
	}
	q.pushLocked(l, key)
}

func (q *queue) pushLocked(l *line, key string) {
	if l.dropped {
		return
	}
	l.known[key] = waiting
	l.waiting = append(l.waiting, key)
	if len(l.waiting) == 1 {
		q.turns = append(q.turns, l)
		q.some.Signal()
	}
}

// process waits for an item and calls its handler. It returns false after the queue has been shut down.
func (q *queue) process() bool {
	q.mu.Lock()
	for len(q.turns) == 0 && !q.closed {
		q.some.Wait()
	}
	if q.closed {
		q.mu.Unlock()
		return false
	}
	l := q.turns[0]
	q.turns = q.turns[1:]
	key := l.waiting[0]
	l.waiting = l.waiting[1:]
	if len(l.waiting) > 0 {
		q.turns = append(q.turns, l)
		q.some.Signal()
	}
	l.known[key] = running
	q.mu.Unlock()

	l.handler(key)

	q.mu.Lock()
	defer q.mu.Unlock()
	again := l.known[key] == runningAgain
	delete(l.known, key)
	if again {
		q.pushLocked(l, key)
	}
	return true
}

// drop removes the items of the line. Items that are added later are ignored.
func (q *queue) drop(l *line) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l.dropped, l.waiting = true, nil
	for i, other := range q.turns {
		if other == l {
			q.turns = append(q.turns[:i:i], q.turns[i+1:]...)
			return
		}
	}
}

func (q *queue) shutDown() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.some.Broadcast()
}
