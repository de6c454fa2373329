package typewatch

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"testing"
)

var oldVersion = regexp.MustCompile(` \d+>`)

func TestEventHandler_ReceivesAllChanges(t *testing.T) {
	for name, projection := range map[string]Projection{"full": Full, "metadata": Metadata, "keys": Keys} {
		t.Run(name, func(t *testing.T) {
			s, w := newTestWatch(projection)
			r := &recorder{}
			for _, step := range []struct {
				name string
				do   func() error
				want []string
			}{
				{"an early handler waits for the list", func() error { r.attach(s); return nil }, nil},
				{"the first list", func() error { return w.Replace([]any{object("a", "1"), object("b", "2")}, "") },
					[]string{"known ns/a", "known ns/b", "synced"}},
				{"a new object", func() error { return w.Add(object("c", "3")) }, []string{"ns/c ->3"}},
				{"a change", func() error { return w.Update(object("a", "4")) }, []string{"ns/a 1>4"}},
				{"the same version", func() error { return w.Update(object("a", "4")) }, nil},
				{"a deletion", func() error { return w.Delete(object("b", "5")) }, []string{"ns/b 2>-"}},
				{"a deletion of an unknown object", func() error { return w.Delete(object("b", "5")) }, nil},
				{"a relist", func() error { return w.Replace([]any{object("a", "6"), object("d", "7")}, "") },
					[]string{"ns/a 4>6", "ns/c 3>-", "ns/d ->7"}},
				{"another handler", func() error { r.attach(s); return nil },
					[]string{"known ns/a", "known ns/d", "synced"}},
				{"no handler", func() error { s.Detach(); return w.Add(object("e", "8")) }, nil},
				{"the first list of another run", func() error {
					w.endRun()
					r.attach(s)
					return w.Replace([]any{object("a", "6")}, "")
				}, []string{"known ns/a", "ns/d 7>-", "ns/e 8>-", "synced"}},
				{"a deletion before the first list", func() error {
					w.endRun()
					return errors.Join(w.Add(object("f", "9")), w.Delete(object("f", "10")))
				}, []string{"ns/f 9>-"}},
				{"an empty list", func() error { return w.Replace(nil, "") }, []string{"ns/a 6>-", "synced"}},
			} {
				if err := step.do(); err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
				want := slices.Clone(step.want)
				for i, event := range want {
					if projection == Keys { // the version before a change is not stored
						want[i] = oldVersion.ReplaceAllString(event, " >")
					}
				}
				r.expect(t, step.name, want...)
				if view := s.View(); len(view.Store().Keys()) != view.Store().Len() {
					t.Errorf("%s: %d keys and a length of %d", step.name, len(view.Store().Keys()), view.Store().Len())
				}
			}
			s.Close()
			<-s.Ended()
		})
	}
}

// newTestWatch returns a subscription and the only reflector of its watch, which has no goroutine.
func newTestWatch(projection Projection) (*Subscription, *reflector) {
	s := newTestPool(newServer()).Subscribe(options(projection), nil)
	return s, s.watch().reflectors[0]
}

func TestD1_ContentChangeAtTheSameVersionIsDelivered(t *testing.T) {
	for name, test := range map[string]struct {
		projection Projection
		want       []string
	}{
		"full":     {Full, []string{"ns/a 1>1"}},
		"metadata": {Metadata, []string{"ns/a 1>1"}},
		"keys":     {Keys, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, w := newTestWatch(test.projection)
			r := attachRecorder(s)
			list := func(label string) {
				t.Helper()
				changed, same := object("a", "1"), object("b", "2")
				changed.Labels["a"] = label
				if test.projection == Metadata {
					same.Kind = label // the kind depends on whether the object was received in a list or an event
				}
				if err := w.Replace([]any{changed, same}, "2"); err != nil {
					t.Fatal(err)
				}
			}
			list("before")
			r.take()
			list("before")
			r.expect(t, "an equal list")
			list("after")
			r.expect(t, "a list with other content", test.want...)
			stored, _ := s.View().Store().Get("ns/a")
			if test.projection != Keys && stored.GetLabels()["a"] != "after" {
				t.Errorf("the stored object is %+v", stored)
			}
			w.endRun()
			list("between runs") // only versions are compared
			r.expect(t, "the first list of a run", "known ns/a", "known ns/b", "synced")
			closeAndWait(s)
		})
	}
}

func TestKnown_IsCalledInBatches(t *testing.T) {
	s, w := newTestWatch(Keys)
	var list []any
	for i := range 600 {
		list = append(list, object(fmt.Sprint(i), "1"))
	}
	if err := w.Replace(list, "1"); err != nil {
		t.Fatal(err)
	}
	var sizes []int
	s.Attach(EventHandler{
		Known:  func(batch []*Object) { sizes = append(sizes, len(batch)) },
		Synced: func() {}, Changed: func(Change) {},
	})
	s.settle()
	if !slices.Equal(sizes, []int{256, 256, 88}) {
		t.Errorf("batches of %v", sizes)
	}
	closeAndWait(s)
}

// The event handler reads its own subscription while the locks of the watch are held.
func TestEventHandler_CanReadSubscriptions(t *testing.T) {
	s, w := newTestWatch(Full)
	s.Attach(EventHandler{
		Known: func([]*Object) {}, Synced: func() {},
		Changed: func(c Change) {
			store := s.View().Store()
			if !store.Has(c.Key) || store.Len() != 1 || !s.HasSynced() || !IsClosed(s.Synced()) {
				t.Error("the store does not show the change")
			}
			_, _ = s.State(), s.View().Store().OwnedBy("uid")
			s.Replacement()
		},
	})
	if err := errors.Join(w.Replace(nil, "1"), w.Add(object("a", "2"))); err != nil {
		t.Fatal(err)
	}
	closeAndWait(s)
}
