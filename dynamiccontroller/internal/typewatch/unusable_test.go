package typewatch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// item returns the record of an object with the given members of its metadata.
func item(projection Projection, metadata string) *objects.Record {
	data := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"K","metadata":{%s}}`, metadata)
	return objects.ParseItem(data, projection, metav1.TypeMeta{})
}

func named(projection Projection, name, version string) *objects.Record {
	const format = `"namespace":"ns","name":%q,"uid":"uid-%s","resourceVersion":%q`
	return item(projection, fmt.Sprintf(format, name, name, version))
}

// The members of the metadata of unusable forms of the object ns/a, and of an object that could be any.
const (
	unusableByKey = `"namespace":"ns","name":"a","resourceVersion":"9","uid":7`
	unusableByUID = `"namespace":"ns","uid":"uid-a","resourceVersion":"9"`
	anonymous     = `"namespace":"ns","resourceVersion":"9"`
)

// syncedWatch returns a watch that holds the objects ns/a and ns/b.
func syncedWatch(t *testing.T, projection Projection) (*Subscription, *reflector, *recorder) {
	t.Helper()
	s, w := newTestWatch(projection)
	r := attachRecorder(s)
	if err := w.Replace([]any{named(projection, "a", "1"), named(projection, "b", "2")}, "2"); err != nil {
		t.Fatal(err)
	}
	r.take()
	return s, w, r
}

func TestD3_UnusableItemOfAListKeepsTheLastRecord(t *testing.T) {
	for projection := Keys; projection <= Complete; projection++ {
		for name, test := range map[string]struct {
			unusable string
			deleted  []string
			kept     int
		}{
			"identified by its name": {unusableByKey, []string{"ns/b 2>-"}, 1},
			"identified by its UID":  {unusableByUID, []string{"ns/b 2>-"}, 1},
			"unknown object":         {`"namespace":"ns","uid":"new"`, []string{"ns/a 1>-", "ns/b 2>-"}, 0},
			"not identified":         {anonymous, nil, 2},
		} {
			t.Run(fmt.Sprintf("projection %d, %s", projection, name), func(t *testing.T) {
				testUnusableList(t, projection, test.unusable, test.deleted, test.kept)
			})
		}
	}
}

func testUnusableList(t *testing.T, projection Projection, unusable string, deleted []string, kept int) {
	s, w, r := syncedWatch(t, projection)
	if err := w.Replace([]any{item(projection, unusable), named(projection, "c", "9")}, "9"); err != nil {
		t.Fatal(err)
	}
	for i := range deleted {
		if projection == Keys {
			deleted[i] = deleted[i][:len("ns/b ")] + ">-"
		}
	}
	r.expect(t, "the list", append(deleted, "ns/c ->9")...)
	if n := s.View().Store().Len(); n != kept+1 {
		t.Errorf("%d objects", n)
	}
	if u := s.View().Unusable(); u.Objects != 1 || u.Message == "" {
		t.Errorf("got %+v", u)
	}
	if err := w.Replace([]any{named(projection, "a", "10"), named(projection, "c", "9")}, "10"); err != nil {
		t.Fatal(err)
	}
	if u := s.View().Unusable(); u != (Unusable{}) {
		t.Errorf("after a usable list: %+v", u)
	}
	if kept == 2 && s.View().Store().Has("ns/b") {
		t.Error("a complete list does not delete")
	}
	closeAndWait(s)
}

func TestD3_UnusableEventKeepsTheLastRecord(t *testing.T) {
	for projection := Keys; projection <= Complete; projection++ {
		for _, unusable := range []string{unusableByKey, unusableByUID, anonymous} {
			s, w, r := syncedWatch(t, projection)
			for range 3 {
				if err := w.Update(item(projection, unusable)); err != nil {
					t.Fatal(err)
				}
			}
			r.expect(t, "unusable events")
			if u := s.View().Unusable(); u.Objects != 1 || s.View().Store().Len() != 2 {
				t.Errorf("%s: %+v, %d objects", unusable, u, s.View().Store().Len())
			}
			if w.position.Load() != 9 {
				t.Errorf("%s: position %d", unusable, w.position.Load())
			}
			if err := w.Update(named(projection, "a", "10")); err != nil {
				t.Fatal(err)
			}
			if n := s.View().Unusable().Objects; (n == 0) != (unusable != anonymous) {
				t.Errorf("%s: after a usable event: %d unusable", unusable, n)
			}
			closeAndWait(s)
		}
	}
}

func TestUnusableDeletion_RemovesTheIdentifiedObject(t *testing.T) {
	for projection := Keys; projection <= Complete; projection++ {
		for _, unusable := range []string{unusableByKey, unusableByUID} {
			s, w, _ := syncedWatch(t, projection)
			if err := w.Update(item(projection, unusable)); err != nil {
				t.Fatal(err)
			}
			if err := w.Delete(item(projection, unusable)); err != nil {
				t.Fatal(err)
			}
			if s.View().Store().Has("ns/a") || !s.View().Store().Has("ns/b") || s.View().Unusable().Objects != 0 {
				t.Errorf("%s: keys %v, %+v", unusable, s.View().Store().Keys(), s.View().Unusable())
			}
			closeAndWait(s)
		}
	}
}

// Only a list shows which object was deleted. The loop lists after an error.
func TestUnusableDeletion_OfAnUnknownObjectIsAnError(t *testing.T) {
	s, w, r := syncedWatch(t, Full)
	err := w.Delete(item(Full, anonymous))
	r.expect(t, "the deletion")
	if err == nil || s.View().Unusable().Objects != 1 {
		t.Errorf("error %v, %+v", err, s.View().Unusable())
	}
	w.endRun() // stops the timer
	closeAndWait(s)
}

// The store of a decoded client behaves in the same way.
func TestUnusableItem_FromADecodedClient(t *testing.T) {
	s, w, r := syncedWatch(t, Metadata)
	nameless := object("", "9")
	nameless.UID = "uid-a"
	if err := w.Replace([]any{nameless, named(Metadata, "b", "2"), &metav1.Status{}}, "9"); err != nil {
		t.Fatal(err)
	}
	r.expect(t, "the list")
	if u := s.View().Unusable(); u.Objects != 2 || s.View().Store().Len() != 2 {
		t.Errorf("%+v, %d objects", u, s.View().Store().Len())
	}
	closeAndWait(s)
}

func TestUnusable_FirstOneIsLogged(t *testing.T) {
	s, w, _ := syncedWatch(t, Full)
	var lines []string
	w.watch.log = funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	for i := range 5 {
		if err := w.Add(item(Full, fmt.Sprintf(`"name":%d,"uid":"%d"`, i, i))); err != nil {
			t.Fatal(err)
		}
	}
	if len(lines) != 1 || !strings.Contains(lines[0], "metadata.name is not a string") {
		t.Errorf("got %q", lines)
	}
	if n := s.View().Unusable().Objects; n != 5 {
		t.Errorf("%d unusable objects", n)
	}
	closeAndWait(s)
}

func TestD3_RecreatedObjectIsDeletedAndAdded(t *testing.T) {
	for projection := Keys; projection <= Complete; projection++ {
		old := "1"
		if projection == Keys {
			old = ""
		}
		recreated := item(projection, `"namespace":"ns","name":"a","uid":"new","resourceVersion":"5"`)
		want := []string{"ns/a " + old + ">-", "ns/a ->5"}
		s, w, r := syncedWatch(t, projection)
		if err := w.Replace([]any{recreated, named(projection, "b", "2")}, "5"); err != nil {
			t.Fatal(err)
		}
		if got := r.take(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("projection %d: list: %q", projection, got)
		}
		closeAndWait(s)
		s, w, r = syncedWatch(t, projection)
		if err := w.Update(recreated); err != nil {
			t.Fatal(err)
		}
		if got := r.take(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("projection %d: event: %q", projection, got)
		}
		closeAndWait(s)
	}
}

func TestD1_EventWithOtherContentAtTheSameVersionIsStored(t *testing.T) {
	for projection := Metadata; projection <= Complete; projection++ {
		s, w, r := syncedWatch(t, projection)
		changed := item(projection, `"namespace":"ns","name":"a","uid":"uid-a","resourceVersion":"1","labels":{"x":"y"}`)
		for range 2 {
			if err := w.Update(changed); err != nil {
				t.Fatal(err)
			}
		}
		r.expect(t, "the events", "ns/a 1>1")
		if stored, _ := s.View().Store().Get("ns/a"); stored.GetLabels()["x"] != "y" {
			t.Errorf("projection %d: not stored", projection)
		}
		closeAndWait(s)
	}
}

// The UID shows that the stored object has been deleted.
func TestD3_UnusableFormOfARecreatedObjectDeletesTheOldOne(t *testing.T) {
	const recreated = `"namespace":"ns","name":"a","uid":"new","resourceVersion":7`
	for projection := Keys; projection <= Complete; projection++ {
		want := "ns/a 1>-"
		if projection == Keys {
			want = "ns/a >-"
		}
		s, w, r := syncedWatch(t, projection)
		if err := w.Replace([]any{item(projection, recreated), named(projection, "b", "2")}, "9"); err != nil {
			t.Fatal(err)
		}
		r.expect(t, fmt.Sprintf("projection %d: list", projection), want)
		closeAndWait(s)
		s, w, r = syncedWatch(t, projection)
		for range 2 {
			if err := w.Update(item(projection, recreated)); err != nil {
				t.Fatal(err)
			}
		}
		r.expect(t, fmt.Sprintf("projection %d: events", projection), want)
		closeAndWait(s)
	}
}

// An unreadable namespace makes the key look like that of another object.
func TestD3_UnusableItemWithAnotherKeyIsIdentifiedByItsUID(t *testing.T) {
	const otherKey = `"name":"a","uid":"uid-a","resourceVersion":9`
	for projection := Keys; projection <= Complete; projection++ {
		s, w, r := syncedWatch(t, projection)
		if err := w.Replace([]any{item(projection, otherKey), named(projection, "b", "2")}, "9"); err != nil {
			t.Fatal(err)
		}
		r.expect(t, fmt.Sprintf("projection %d: list", projection))
		if err := w.Delete(item(projection, otherKey)); err != nil {
			t.Fatal(err)
		}
		if s.View().Store().Has("ns/a") || s.View().Unusable() != (Unusable{}) {
			t.Errorf("projection %d: %v, %+v", projection, s.View().Store().Keys(), s.View().Unusable())
		}
		closeAndWait(s)
	}
}

// A transform can remove the UIDs, so that an object that is known only by its UID may be any of the stored ones.
func TestD3_ObjectKnownOnlyByItsUIDIfStoredObjectsHaveNone(t *testing.T) {
	for projection := Keys; projection <= Complete; projection++ {
		s, w := newTestWatch(projection)
		r := attachRecorder(s)
		if err := w.Replace([]any{item(projection, `"namespace":"ns","name":"x"`)}, "2"); err != nil {
			t.Fatal(err)
		}
		r.take()
		if err := w.Replace([]any{item(projection, unusableByUID)}, "9"); err != nil {
			t.Fatal(err)
		}
		r.expect(t, fmt.Sprintf("projection %d", projection))
		if err := w.Replace([]any{}, "10"); err != nil {
			t.Fatal(err)
		}
		r.expect(t, fmt.Sprintf("projection %d: a list that identifies all objects", projection), "ns/x >-")
		closeAndWait(s)
	}
}

func TestUnusableDeletion_OfAnUnknownUIDIsAnError(t *testing.T) {
	for unusable, fails := range map[string]bool{unusableByUID: false, `"uid":"other"`: true} {
		s, w, _ := syncedWatch(t, Full)
		if err := w.Delete(item(Full, unusable)); (err != nil) != fails {
			t.Errorf("%s: error %v", unusable, err)
		}
		w.endRun() // stops the timer
		closeAndWait(s)
	}
}

func TestUnusable_ObjectOfAnotherNamespace(t *testing.T) {
	for projection := Keys; projection <= Complete; projection++ {
		o := options(projection)
		o.Namespaces = "ns,other"
		s := newTestPool(newServer()).Subscribe(o, nil)
		w := s.watch().reflectors[0]
		var sizes []int64
		for range 3 {
			list := []any{named(projection, "a", "1"), item(projection, `"namespace":"x","name":"c"`)}
			if err := w.Replace(list, "2"); err != nil {
				t.Fatal(err)
			}
			if err := w.Add(item(projection, `"namespace":"x","name":"d"`)); err != nil {
				t.Fatal(err)
			}
			sizes = append(sizes, s.View().Store().Size())
		}
		if sizes[0] != sizes[2] || s.View().Store().Len() != 1 || s.View().Unusable().Objects != 2 {
			t.Errorf("projection %d: sizes %d, keys %v, %+v", projection, sizes, s.View().Store().Keys(), s.View().Unusable())
		}
		closeAndWait(s)
	}
}

func TestUnusable_MessageDescribesAnUnusableObject(t *testing.T) {
	s, w, _ := syncedWatch(t, Full)
	for _, name := range []string{"c", "d"} {
		if err := w.Add(item(Full, fmt.Sprintf(`"namespace":"ns","name":%q,"labels":1`, name))); err != nil {
			t.Fatal(err)
		}
	}
	if u := s.View().Unusable(); !strings.HasPrefix(u.Message, "ns/d: metadata: ") {
		t.Errorf("got %q", u.Message)
	}
	if err := w.Update(named(Full, "d", "3")); err != nil {
		t.Fatal(err)
	}
	published := w.watch.unusable.Load()
	if !strings.HasPrefix(published.Message, "ns/c: metadata: ") {
		t.Errorf("after d was repaired: got %q", published.Message)
	}
	if err := w.Update(named(Full, "e", "4")); err != nil {
		t.Fatal(err)
	}
	if w.watch.unusable.Load() != published {
		t.Error("published again without a change")
	}
	if err := w.Update(item(Full, `"namespace":"ns","name":"c","labels":1`)); err != nil {
		t.Fatal(err)
	}
	if w.watch.unusable.Load() != published {
		t.Error("published again after the same event")
	}
	if err := w.Update(named(Full, "c", "5")); err != nil {
		t.Fatal(err)
	}
	if u := s.View().Unusable(); u != (Unusable{}) {
		t.Errorf("after all objects were repaired: got %+v", u)
	}
	closeAndWait(s)
}

func TestUnusable_NumberOfHeldObjectsIsLimited(t *testing.T) {
	s, w, r := syncedWatch(t, Full)
	var list []any
	for i := range maxUnusable + 5 {
		list = append(list, item(Full, fmt.Sprintf(`"namespace":"ns","name":"x%d","labels":1`, i)))
	}
	if err := w.Replace(append(list, named(Full, "a", "1")), "9"); err != nil {
		t.Fatal(err)
	}
	r.expect(t, "the list", "ns/b 2>-") // all its items are identified
	if n := s.View().Unusable().Objects; n != maxUnusable+5 || len(w.unusable.items) != maxUnusable {
		t.Errorf("%d objects, %d held", n, len(w.unusable.items))
	}
	if _, identified := w.watch.identify(w.watch); identified {
		t.Error("objects that are not held count as identified")
	}
	closeAndWait(s)
}

// The reflector relists until it can identify all objects, with growing delays.
func TestUnusable_AnonymousObjectLeadsToRelists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, _ := syncedWatch(t, Full)
		started, relists := time.Now(), []time.Duration{}
		w.relist = func() { relists = append(relists, time.Since(started)) }
		if err := w.Update(item(Full, anonymous)); err != nil {
			t.Fatal(err)
		}
		if message := s.View().Unusable().Message; !strings.Contains(message, "no deletions are taken from lists") {
			t.Errorf("got %q", message)
		}
		time.Sleep(minRepair)
		synctest.Wait()
		for _, delay := range []time.Duration{2 * minRepair, 0} {
			var list []any
			if delay > 0 {
				list = append(list, item(Full, anonymous))
			}
			if err := w.Replace(list, "9"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2*minRepair + maxRepair)
			synctest.Wait()
		}
		if want := []time.Duration{minRepair, 3 * minRepair}; !slices.Equal(relists, want) {
			t.Errorf("got %v, want %v", relists, want)
		}
		if u := s.View().Unusable(); u != (Unusable{}) {
			t.Errorf("got %+v", u)
		}
		closeAndWait(s)
	})
}

// The loop lists after a delay, and the list identifies all objects.
func TestUnusable_ListAfterAnAnonymousObject(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		s := p.Subscribe(options(Full), nil)
		synctest.Wait()
		srv.changeNameless("a")
		time.Sleep(minRepair - time.Second)
		if n := len(srv.listed()); n != 1 || s.View().Unusable().Objects != 1 {
			t.Errorf("before the delay: %d lists, %+v", n, s.View().Unusable())
		}
		time.Sleep(time.Hour)
		if n := len(srv.listed()); n != 2 || s.View().Unusable() != (Unusable{}) {
			t.Errorf("after the delay: %d lists, %+v", n, s.View().Unusable())
		}
		closeAndWait(s)
	})
}

func TestUnusableDeletion_RelistsOnlyItsNamespace(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		srv.put("b")
		srv.put("other/a")
		s := p.Subscribe(in("ns,other", Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		r.take()
		before := len(srv.listed())
		srv.deleteNameless("a")
		synctest.Wait()
		r.expect(t, "the deletion", "ns/a 1>-")
		lists := srv.listed()[before:]
		if len(lists) != 1 || lists[0].namespace != "ns" || lists[0].ResourceVersion != "4" {
			t.Errorf("listed with %+v", lists)
		}
		if u, phase := s.View().Unusable(), s.State().Phase; u != (Unusable{}) || phase != Synced {
			t.Errorf("%s, %+v", phase, u)
		}
		closeAndWait(s)
	})
}

// A server that sends such a deletion in each watch does not cause a list in each round trip.
func TestUnusableDeletion_RelistsAreLimited(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		s := p.Subscribe(options(Full), nil)
		for range 1000 {
			srv.put("a")
			srv.deleteNameless("a")
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(srv.listed()); n > 20 {
			t.Errorf("%d lists in 10 seconds", n)
		}
		closeAndWait(s)
	})
}
