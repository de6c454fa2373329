package reflector

import "sync"

// queue hands out one item of a type, then one of the next. An item waits once and is never processed twice at a time.
type queue struct {
	mu     sync.Mutex // guards what follows, and all lines
	some   sync.Cond  // a line has joined turns, or the queue shuts down
	turns  []*line    // those with something waiting, in turn
	closed bool
}

// line is what waits of one type.
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
	runningAgain // wanted again meanwhile
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

// process waits for an item and has it handled. It is false once the queue shuts down.
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

// drop forgets what waits in the line, and takes nothing for it any more.
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
