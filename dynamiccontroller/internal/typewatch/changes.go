package typewatch

import linked "container/list" // there is a type list in this package

// maxUncombined is the number of changes that wait before changes to the same object are combined.
//
// Changes are combined as late as possible, because an intermediate state is lost: if an object moved from A to B and
// then to C, the combined change does not affect B, although B can have been reconciled in between. The event handler
// is notified of that; see [EventHandler].Lost.
var maxUncombined = 1024 // a variable for tests

// changeQueue holds changes that have not been delivered, in their order. If many changes wait, changes to the same
// object are combined, so that the number of entries is bounded by that of the objects. The zero value is empty.
type changeQueue struct {
	// entries holds values of type *change, and func() for a function that is called after all earlier changes.
	entries linked.List
	byKey   map[string]*linked.Element // the last entry of each object
	lost    bool                       // a state has been lost since lost was reset
}

// change combines one or more changes to an object: the first old state and the latest new one.
type change struct {
	Change
	recreated bool // the object was deleted and created again in between
}

func (q *changeQueue) isEmpty() bool { return q.entries.Len() == 0 }

// add adds a change, or combines it with the last one of the same object. If that one is an addition, and the change is
// a deletion, neither is delivered.
func (q *changeQueue) add(c Change) {
	element := q.byKey[c.Key]
	if element == nil || q.entries.Len() < maxUncombined {
		if q.byKey == nil {
			q.byKey = map[string]*linked.Element{}
		}
		q.byKey[c.Key] = q.entries.PushBack(&change{Change: c})
		return
	}
	waiting := element.Value.(*change)
	q.lost = q.lost || waiting.New != nil
	switch {
	case c.New == nil && waiting.Old == nil:
		q.remove(element)
		return
	case c.New == nil:
		waiting.recreated = false
	case waiting.New == nil:
		uid := uidOf(c.New)
		waiting.recreated = uid == "" || uid != uidOf(waiting.Old)
	}
	waiting.New = c.New
}

// addFunc adds a function that is called when all earlier changes have been delivered.
func (q *changeQueue) addFunc(f func()) { q.entries.PushBack(f) }

// append moves all entries of another queue to the end of q.
func (q *changeQueue) append(other *changeQueue) {
	for e := other.entries.Front(); e != nil; e = e.Next() {
		c, isChange := e.Value.(*change)
		switch {
		case !isChange:
			q.addFunc(e.Value.(func()))
		case c.recreated:
			q.add(Change{Key: c.Key, Old: c.Old})
			q.add(Change{Key: c.Key, New: c.New})
		default:
			q.add(c.Change)
		}
	}
	q.lost = q.lost || other.lost
	*other = changeQueue{}
}

// keepDeletions removes all changes except deletions.
func (q *changeQueue) keepDeletions() {
	kept := changeQueue{lost: q.lost}
	for !q.isEmpty() {
		switch c, f := q.next(); {
		case f != nil:
			kept.addFunc(f)
		case c.New == nil:
			kept.add(c)
		}
	}
	*q = kept
}

// next removes the first change or function. If an object was deleted and created again, next returns the deletion, and
// the addition stays in the queue.
func (q *changeQueue) next() (c Change, f func()) {
	first := q.entries.Front()
	waiting, isChange := first.Value.(*change)
	switch {
	case !isChange:
		q.entries.Remove(first)
		return Change{}, first.Value.(func())
	case waiting.recreated:
		c = Change{Key: waiting.Key, Old: waiting.Old}
		waiting.Old, waiting.recreated = nil, false
		return c, nil
	default:
		q.remove(first)
		return waiting.Change, nil
	}
}

func (q *changeQueue) remove(element *linked.Element) {
	if key := element.Value.(*change).Key; q.byKey[key] == element {
		delete(q.byKey, key)
	}
	q.entries.Remove(element)
}

// clear removes all entries and returns the functions among them.
func (q *changeQueue) clear() (functions []func()) {
	for e := q.entries.Front(); e != nil; e = e.Next() {
		if f, ok := e.Value.(func()); ok {
			functions = append(functions, f)
		}
	}
	*q = changeQueue{}
	return functions
}
