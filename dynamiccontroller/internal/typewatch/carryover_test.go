package typewatch

import (
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
)

// swap replaces a watch that holds the objects ns/a and ns/b by one whose list is given, and calls check afterwards.
func swap(
	t *testing.T, from, to Options, handle bool, list []any, check func(s *Subscription, to *reflector, r *recorder),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newTestPool(newServer()).Subscribe(from, nil)
		r := &recorder{}
		if handle {
			r.attach(s)
		}
		older := s.watch().reflectors[0]
		if err := older.Replace([]any{named(from.Projection, "a", "1"), named(from.Projection, "b", "2")}, "2"); err != nil {
			t.Fatal(err)
		}
		r.take()
		s.Replace(to, noop, noop)
		newer := s.replacement.to.watch.reflectors[0]
		if err := newer.Replace(list, "9"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		check(s, newer, r)
		closeAndWait(s)
	})
}

func TestReplacement_CarriesOverUnusableObjects(t *testing.T) {
	for name, test := range map[string]struct {
		from, to Options
		carried  bool
		old      string // the last state of a
	}{
		"the same projection":   {options(Full), selecting(Full), true, "1"},
		"metadata of an object": {options(Full), options(Metadata), true, "1"},
		"keys of an object":     {options(Full), options(Keys), true, ""},
		"keys":                  {options(Keys), selecting(Keys), true, ""},
		"a wider projection":    {options(Metadata), options(Full), false, "1"},
		"metadata after keys":   {options(Keys), options(Metadata), false, ""},
		"a transform":           {options(Full), transformed(Full), false, "1"},
		"keys after transform":  {transformed(Full), options(Keys), true, ""},
	} {
		for _, unusable := range []string{unusableByKey, unusableByUID} {
			for _, handle := range []bool{true, false} {
				t.Run(name, func(t *testing.T) { testCarryOver(t, test.from, test.to, unusable, handle, test.carried) })
			}
		}
	}
}

// testCarryOver checks that the unusable object is carried over, or else that its deletion is delivered at the swap.
func testCarryOver(t *testing.T, from, to Options, unusable string, handle, carried bool) {
	p := to.Projection
	list := []any{item(p, unusable), named(p, "b", "2")}
	swap(t, from, to, handle, list, func(s *Subscription, to *reflector, r *recorder) {
		if s.watch() != to.watch {
			t.Fatal("the subscription has not switched")
		}
		if has := s.View().Store().Has("ns/a"); has != carried {
			t.Errorf("the new store has the object: %v", has)
		}
		deletions := deletionsOf("ns/a", r.take())
		if handle && deletions != map[bool]int{true: 0, false: 1}[carried] {
			t.Errorf("%d deletions after the swap", deletions)
		}
		// A deletion is delivered exactly once, at the swap or afterwards.
		if err := to.Delete(item(p, unusable)); err != nil {
			t.Fatal(err)
		}
		if deletions += deletionsOf("ns/a", r.take()); handle && deletions != 1 {
			t.Errorf("%d deletions", deletions)
		}
		if s.View().Store().Has("ns/a") {
			t.Error("the deleted object is still in the store")
		}
	})
}

func deletionsOf(key string, events []string) (n int) {
	for _, event := range events {
		if event == key+" 1>-" || event == key+" >-" {
			n++
		}
	}
	return n
}

func TestReplacement_DeliversTheDeletionOfACarriedObjectThatAListLacks(t *testing.T) {
	list := []any{item(Full, unusableByKey), named(Full, "b", "2")}
	swap(t, options(Full), selecting(Full), true, list, func(s *Subscription, to *reflector, r *recorder) {
		r.take()
		if err := to.Replace([]any{named(Full, "b", "2")}, "10"); err != nil {
			t.Fatal(err)
		}
		r.expect(t, "the list", "ns/a 1>-")
	})
}

func TestReplacement_CarriesOverNothingThatWasRecreated(t *testing.T) {
	list := []any{item(Full, `"namespace":"ns","name":"a","uid":"new","resourceVersion":7`), named(Full, "b", "2")}
	swap(t, options(Full), selecting(Full), true, list, func(s *Subscription, _ *reflector, r *recorder) {
		r.expect(t, "the swap", "ns/a 1>-")
		if s.View().Store().Has("ns/a") {
			t.Error("the old object is in the new store")
		}
	})
}

// If an object of the new watch may be any of the old one, it is unknown which of them still exist and match.
func TestReplacement_WaitsUntilAllObjectsAreIdentified(t *testing.T) {
	list := []any{item(Full, anonymous), named(Full, "b", "2")}
	swap(t, options(Full), selecting(Full), true, list, func(s *Subscription, to *reflector, r *recorder) {
		r.expect(t, "the first list")
		if _, pending := s.Replacement(); !pending {
			t.Fatal("the subscription has switched")
		}
		if err := to.Replace([]any{named(Full, "b", "2")}, "10"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		r.expect(t, "the second list", "ns/a 1>-")
		if _, pending := s.Replacement(); pending || s.View().Store().Has("ns/a") {
			t.Errorf("pending: %v, keys %v", pending, s.View().Store().Keys())
		}
	})
}

// Other subscriptions of the new watch receive a carried object as a new one.
func TestReplacement_NotifiesOtherSubscriptionsOfCarriedObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(newServer())
		s, other := p.Subscribe(options(Full), nil), p.Subscribe(selecting(Full), nil)
		r := attachRecorder(other)
		from, to := s.watch().reflectors[0], other.watch().reflectors[0]
		if err := from.Replace([]any{named(Full, "a", "1")}, "2"); err != nil {
			t.Fatal(err)
		}
		if err := to.Replace([]any{item(Full, unusableByKey)}, "9"); err != nil {
			t.Fatal(err)
		}
		r.take()
		s.Replace(selecting(Full), noop, noop)
		synctest.Wait()
		r.expect(t, "the swap", "ns/a ->1")
		closeAndWait(s)
		closeAndWait(other)
	})
}

// A list that was compared with the store before an object was carried over must still delete it.
func TestReplacement_CarriedObjectIsComparedWithAListInProgress(t *testing.T) {
	p := newTestPool(newServer())
	s, other := p.Subscribe(options(Full), nil), p.Subscribe(selecting(Full), nil)
	r := attachRecorder(other)
	from, to := s.watch(), other.watch()
	if err := from.reflectors[0].Replace([]any{named(Full, "a", "1")}, "2"); err != nil {
		t.Fatal(err)
	}
	if err := to.reflectors[0].Replace([]any{item(Full, unusableByKey)}, "9"); err != nil {
		t.Fatal(err)
	}
	r.take()
	to.delivery.Lock()
	listed := make(chan error, 1)
	go func() { listed <- to.reflectors[0].Replace([]any{}, "10") }()
	eventually(t, func() string { // until the list has been compared
		stacks := make([]byte, 1<<20)
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "sync.(*Mutex).Lock") && strings.Contains(stack, "setAll") {
				return ""
			}
		}
		return "no list waits for the lock"
	})
	to.carryOver(from, []string{"ns/a"})
	to.delivery.Unlock()
	if err := <-listed; err != nil {
		t.Fatal(err)
	}
	r.expect(t, "the list", "ns/a 1>-")
	closeAndWait(s)
	closeAndWait(other)
}
