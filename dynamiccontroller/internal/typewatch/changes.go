package typewatch

import linked "container/list" // there is a type list in this package

// maxUncombined is the number of changes that wait before changes to the same object are combined.
//
// Changes are combined as late as possible, because an intermediate state is dropped: if an object moved from A to B
// and then to C, the combined change does not affect B, although B can have been reconciled in between. The event
// handler decides whether the dropped state is lost, and is notified if it is; see [EventHandler].Loses.
var maxUncombined = 1024 // a variable for tests

// changeQueue holds changes that have not been delivered, in their order. If many changes wait, changes to the same
// object are combined, so that the number of entries is bounded by that of the objects. The zero value is empty.
type changeQueue struct {
	// entries holds values of type *change, and func() for a function that is called after all earlier changes.
	entries linked.List
	byKey   map[string]*linked.Element // the last entry of each object
	lost    bool                       // a state has been lost since lost was reset; see EventHandler.Loses
}

// change combines one or more changes to an object: the first old state and the latest new one.
type change struct {
	Change
	recreated bool // the object was deleted and created again in between
}

func (q *changeQueue) isEmpty() bool { return q.entries.Len() == 0 }

// losesFunc is the type of [EventHandler].Loses.
type losesFunc func(dropped *Object, combined Change) bool

// add adds a change, or combines it with the last one of the same object. If that one is an addition, and the change is
// a deletion, neither is delivered. If the changes are combined, loses reports whether the state between them is lost.
// If loses is nil, it is.
func (q *changeQueue) add(c Change, loses losesFunc) {
	element := q.byKey[c.Key]
	if element == nil || q.entries.Len() < maxUncombined {
		if q.byKey == nil {
			q.byKey = map[string]*linked.Element{}
		}
		q.byKey[c.Key] = q.entries.PushBack(&change{Change: c})
		return
	}
	waiting := element.Value.(*change)
	if dropped := waiting.New; dropped != nil && !q.lost {
		q.lost = loses == nil || hasOtherValue(c.Old, dropped) ||
			loses(dropped, Change{Key: c.Key, Old: waiting.Old, New: c.New})
	}
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

// hasOtherValue reports whether the options have changed since the state was added that a change replaces. The combined
// change is delivered according to the earlier options only.
func hasOtherValue(old, dropped *Object) bool {
	return old != nil && old.View.Value() != dropped.View.Value()
}

// addFunc adds a function that is called when all earlier changes have been delivered.
func (q *changeQueue) addFunc(f func()) { q.entries.PushBack(f) }

// append moves all entries of another queue to the end of q. For loses, see add.
func (q *changeQueue) append(other *changeQueue, loses losesFunc) {
	for e := other.entries.Front(); e != nil; e = e.Next() {
		c, isChange := e.Value.(*change)
		switch {
		case !isChange:
			q.addFunc(e.Value.(func()))
		case c.recreated:
			q.add(Change{Key: c.Key, Old: c.Old}, loses)
			q.add(Change{Key: c.Key, New: c.New}, loses)
		default:
			q.add(c.Change, loses)
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
			kept.add(c, nil) // no state is dropped
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
