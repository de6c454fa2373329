package typewatch

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// stateOf returns an object in a state with the given UID and version. It returns nil if the version is 0.
func stateOf(t testing.TB, key, uid string, version int) *Object {
	t.Helper()
	if version == 0 {
		return nil
	}
	r, err := objects.Encode(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: key, UID: types.UID(uid), ResourceVersion: fmt.Sprint(version),
	}}, objects.Metadata, "")
	if err != nil {
		t.Fatal(err)
	}
	return NewObject(r, View{options: &Options{}})
}

func (c Change) String() string {
	text := c.Key
	for _, o := range []*Object{c.Old, c.New} {
		if o == nil {
			text += " -"
		} else {
			text += fmt.Sprintf(" %s/%s", o.GetUID(), o.GetResourceVersion())
		}
	}
	return text
}

// combineFrom makes queues combine changes when n changes wait.
func combineFrom(t *testing.T, n int) {
	before := maxUncombined
	maxUncombined = n
	t.Cleanup(func() { maxUncombined = before })
}

// Unless many changes wait, each state is delivered. An object that moves from A to B and to C affects B.
func TestChangeQueue_CombinesOnlyIfManyChangesWait(t *testing.T) {
	combineFrom(t, 3)
	var q changeQueue
	for version := 1; version <= 4; version++ {
		for _, key := range []string{"a", "b"} {
			c := Change{Key: key, Old: stateOf(t, key, "x", version), New: stateOf(t, key, "x", version+1)}
			q.add(c, nil)
		}
	}
	var got []string
	for !q.isEmpty() {
		c, _ := q.next()
		got = append(got, c.String())
	}
	want := []string{"a x/1 x/2", "b x/1 x/5", "a x/2 x/5"}
	if !slices.Equal(got, want) || len(q.byKey) > 0 {
		t.Errorf("got %q, want %q; %d keys left", got, want, len(q.byKey))
	}
}

func TestChangeQueue_CombinesChanges(t *testing.T) {
	combineFrom(t, 0)
	state := func(uid string, version int) *Object { return stateOf(t, "a", uid, version) }
	for name, test := range map[string]struct {
		changes [][2]*Object
		want    []string
	}{
		"two updates": {
			[][2]*Object{{state("x", 1), state("x", 2)}, {state("x", 2), state("x", 3)}},
			[]string{"a x/1 x/3"},
		},
		"an addition and an update": {
			[][2]*Object{{nil, state("x", 1)}, {state("x", 1), state("x", 2)}},
			[]string{"a - x/2"},
		},
		"an addition and a deletion": {
			[][2]*Object{{nil, state("x", 1)}, {state("x", 1), nil}},
			nil,
		},
		"an update and a deletion": {
			[][2]*Object{{state("x", 1), state("x", 2)}, {state("x", 2), nil}},
			[]string{"a x/1 -"},
		},
		"a deletion and another object": {
			[][2]*Object{{state("x", 1), nil}, {nil, state("y", 2)}},
			[]string{"a x/1 -", "a - y/2"},
		},
		"a deletion and an unknown UID": {
			[][2]*Object{{state("", 1), nil}, {nil, state("", 2)}},
			[]string{"a /1 -", "a - /2"},
		},
		"a deletion and the same object": {
			[][2]*Object{{state("x", 1), nil}, {nil, state("x", 2)}},
			[]string{"a x/1 x/2"},
		},
		"a deletion, another object, no object": {
			[][2]*Object{{state("x", 1), nil}, {nil, state("y", 2)}, {state("y", 2), nil}},
			[]string{"a x/1 -"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var q changeQueue
			for _, c := range test.changes {
				q.add(Change{Key: "a", Old: c[0], New: c[1]}, nil)
			}
			var got []string
			for !q.isEmpty() {
				c, _ := q.next()
				got = append(got, c.String())
			}
			if !slices.Equal(got, test.want) || len(q.byKey) > 0 {
				t.Errorf("got %q, want %q, %d keys left", got, test.want, len(q.byKey))
			}
		})
	}
}

// queueModel is a queue that holds all changes. It combines them when the next one is taken.
type queueModel struct {
	pending []Change
}

// take returns the first combined change.
func (m *queueModel) take() (first Change, ok bool) {
	for len(m.pending) > 0 {
		combined, rest := m.pending[0], []Change(nil)
		recreated, over := false, false
		for _, c := range m.pending[1:] {
			if over || c.Key != combined.Key {
				rest = append(rest, c)
				continue
			}
			switch {
			case c.New == nil && combined.Old == nil: // the rest begins another change
				over = true
			case c.New == nil:
				recreated = false
			case combined.New == nil:
				recreated = c.New.GetUID() != combined.Old.GetUID()
			}
			combined.New = c.New
		}
		m.pending = rest
		switch {
		case over:
			continue
		case recreated:
			m.pending = append([]Change{{Key: combined.Key, New: combined.New}}, rest...)
			return Change{Key: combined.Key, Old: combined.Old}, true
		default:
			return combined, true
		}
	}
	return Change{}, false
}

// Loses decides whether a dropped state is lost. It receives the change that replaces the combined ones.
func TestChangeQueue_AsksWhetherADroppedStateIsLost(t *testing.T) {
	combineFrom(t, 0)
	state := func(version int) *Object { return stateOf(t, "a", "x", version) }
	for name, test := range map[string]struct {
		changes [][2]int // versions of the old and the new state
		lost    string   // the version that is lost
		want    []string // calls: the dropped state and the change that replaces it
		isLost  bool
	}{
		"an update":   {changes: [][2]int{{1, 2}}},
		"two updates": {changes: [][2]int{{1, 2}, {2, 3}}, want: []string{"2: a x/1 x/3"}},
		"two updates with a loss": {
			changes: [][2]int{{1, 2}, {2, 3}}, lost: "2", want: []string{"2: a x/1 x/3"}, isLost: true,
		},
		"an addition and an update":  {changes: [][2]int{{0, 1}, {1, 2}}, want: []string{"1: a - x/2"}},
		"an addition and a deletion": {changes: [][2]int{{0, 1}, {1, 0}}, want: []string{"1: a - -"}},
		"an update and a deletion":   {changes: [][2]int{{1, 2}, {2, 0}}, want: []string{"2: a x/1 -"}},
		"a deletion and an addition": {changes: [][2]int{{1, 0}, {0, 2}}},
		"three updates": {
			changes: [][2]int{{1, 2}, {2, 3}, {3, 4}}, want: []string{"2: a x/1 x/3", "3: a x/1 x/4"},
		},
		"three updates with a loss at first": {
			changes: [][2]int{{1, 2}, {2, 3}, {3, 4}}, lost: "2", want: []string{"2: a x/1 x/3"}, isLost: true,
		},
		"three updates with a later loss": {
			changes: [][2]int{{1, 2}, {2, 3}, {3, 4}}, lost: "3", want: []string{"2: a x/1 x/3", "3: a x/1 x/4"}, isLost: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var q, other changeQueue
			var got []string
			loses := func(dropped *Object, combined Change) bool {
				got = append(got, dropped.GetResourceVersion()+": "+combined.String())
				return dropped.GetResourceVersion() == test.lost
			}
			for _, c := range test.changes {
				q.add(Change{Key: "a", Old: state(c[0]), New: state(c[1])}, loses)
			}
			if !slices.Equal(got, test.want) || q.lost != test.isLost {
				t.Errorf("got %q, lost %t; want %q, %t", got, q.lost, test.want, test.isLost)
			}
			q.keepDeletions()
			if other.append(&q, loses); other.lost != test.isLost {
				t.Errorf("after the changes were moved, lost is %t, want %t", other.lost, test.isLost)
			}
		})
	}
}

// The queue delivers the same as a queue without a bound. It holds at most one entry for each object, and what it
// delivers leads to the current state of each object. Unless a state is lost, each one is delivered after each change
// to or from it, or another state of the object that is equal in what counts.
// The combined change is delivered according to the options under which its last state was stored. Those of a deleted
// state are not known any more.
func TestChangeQueue_AStateIsLostIfTheOptionsHaveChanged(t *testing.T) {
	combineFrom(t, 0)
	state := func(version int, value string) *Object {
		o := stateOf(t, "a", "x", version)
		o.View.options = &Options{Value: value}
		return o
	}
	for value, want := range map[string]bool{"former": false, "new": true} {
		var q changeQueue
		neverLost := func(*Object, Change) bool { return false }
		q.add(Change{Key: "a", Old: state(1, "former"), New: state(2, "former")}, neverLost)
		q.add(Change{Key: "a", Old: state(2, value)}, neverLost)
		if q.lost != want {
			t.Errorf("with %s options: lost %t, want %t", value, q.lost, want)
		}
	}
}

func TestChangeQueue_DeliversTheSameAsAnUnboundedQueue(t *testing.T) {
	combineFrom(t, 0)
	rapid.Check(t, func(rt *rapid.T) {
		p := &queuePair{
			t: t, current: map[string]*Object{}, received: map[string]*Object{}, missing: map[string]bool{},
		}
		rt.Repeat(map[string]func(*rapid.T){"change": p.change, "deliver": p.deliver, "": func(rt *rapid.T) {
			if n := p.q.entries.Len(); n > 3 || n != len(p.q.byKey) {
				rt.Fatalf("%d entries and %d keys for three objects", n, len(p.q.byKey))
			}
		}})
		for !p.q.isEmpty() {
			p.deliver(rt)
		}
		for key, state := range p.current {
			if p.received[key] != state {
				rt.Fatalf("the last state of %s was %v, want %v", key, p.received[key], state)
			}
		}
		if len(p.missing) > 0 && !p.q.lost {
			rt.Fatalf("nothing is lost, but no state of %v was delivered", p.missing)
		}
	})
}

// queuePair is a queue and its model. The same changes are added to both.
type queuePair struct {
	t                 *testing.T
	q                 changeQueue
	model             queueModel
	current, received map[string]*Object
	missing           map[string]bool // what counts of the states that must be delivered
	version           int
}

// counts returns what counts of a state: the key, and whether the version is odd.
func counts(o *Object) string {
	version, _ := strconv.Atoi(o.GetResourceVersion())
	return fmt.Sprint(o.Key(), version%2)
}

// loses is a function for [EventHandler].Loses.
func (p *queuePair) loses(dropped *Object, combined Change) bool {
	return (combined.Old == nil || counts(combined.Old) != counts(dropped)) &&
		(combined.New == nil || counts(combined.New) != counts(dropped))
}

// statesOf returns the states of a change.
func statesOf(c Change) []*Object {
	return slices.DeleteFunc([]*Object{c.Old, c.New}, func(o *Object) bool { return o == nil })
}

// change adds, changes or deletes an object.
func (p *queuePair) change(rt *rapid.T) {
	key := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "key")
	p.version++
	c := Change{Key: key, Old: p.current[key]}
	switch {
	case c.Old == nil:
		c.New = stateOf(p.t, key, rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "uid"), p.version)
	case !rapid.Bool().Draw(rt, "delete"):
		c.New = stateOf(p.t, key, string(c.Old.GetUID()), p.version)
	}
	p.q.add(c, p.loses)
	p.model.pending = append(p.model.pending, c)
	p.current[key] = c.New
	for _, state := range statesOf(c) {
		p.missing[counts(state)] = true
	}
}

// deliver takes the first change from the queue and from the model.
func (p *queuePair) deliver(rt *rapid.T) {
	want, ok := p.model.take()
	if ok == p.q.isEmpty() {
		rt.Fatalf("the queue is empty: %t, the model returned %v", p.q.isEmpty(), want)
	}
	if !ok {
		return
	}
	got, _ := p.q.next()
	if got != want {
		rt.Fatalf("got %v, want %v", got, want)
	}
	if got.Old != p.received[got.Key] {
		rt.Fatalf("got %v, but the last state was %v", got, p.received[got.Key])
	}
	if got.Old != nil && got.New != nil && got.Old.GetUID() != got.New.GetUID() {
		rt.Fatalf("%v is a change from one object to another", got)
	}
	p.received[got.Key] = got.New
	for _, state := range statesOf(got) {
		delete(p.missing, counts(state))
	}
}
