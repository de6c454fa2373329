package typewatch

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/dynamic-controller/engine/internal/writes"
)

// widgetWrite returns a write to the object ns/a.
func widgetWrite(version string, set labels.Set) writes.Write {
	return writes.Write{
		Resource: widgets.GroupResource(), Namespace: "ns", Name: "a", UID: "a",
		States: []writes.State{{Version: version, Labels: set}},
	}
}

func removal(version string, set labels.Set) writes.Write {
	w := widgetWrite(version, set)
	if w.Gone = true; version == "" {
		w.States = nil
	}
	return w
}

// scaled returns a write to the scale subresource, whose response does not contain the labels.
func scaled(version string) writes.Write {
	w := widgetWrite(version, nil)
	w.States[0].Scaled = true
	return w
}

func withUID(o *metav1.PartialObjectMetadata, uid types.UID) *metav1.PartialObjectMetadata {
	o.UID = uid
	return o
}

// lackRig has a subscription whose watch receives what the test passes to its reflector.
type lackRig struct {
	t      *testing.T
	s      *Subscription
	r      *reflector
	called int // Progress
}

func newLackRig(t *testing.T, change func(*Options)) *lackRig {
	rig := &lackRig{t: t}
	config := newTestPool(newServer()).config
	config.Progress = func() { rig.called++ }
	o := options(Metadata)
	if change != nil {
		change(&o)
	}
	rig.s = NewPool(config).Subscribe(o, nil)
	rig.r = rig.s.watch().reflectors[0]
	t.Cleanup(func() { closeAndWait(rig.s) })
	return rig
}

func (l *lackRig) want(when string, w writes.Write, want bool) {
	l.t.Helper()
	var mark Mark
	for range 2 { // without and with a mark
		if got := l.s.Lacks(w, 0, &mark); got != want {
			l.t.Errorf("%s: the cache lacks %+v: %t", when, w, got)
		}
	}
}

// does calls receive, which must report progress.
func (l *lackRig) does(receive func() error) {
	l.t.Helper()
	before := l.called
	if err := receive(); err != nil {
		l.t.Fatal(err)
	}
	if l.called == before {
		l.t.Error("Progress was not called")
	}
}

func (l *lackRig) list(version string, items ...any) {
	l.t.Helper()
	l.does(func() error { return l.r.Replace(items, version) })
}

func TestLacks_UntilTheVersionArrives(t *testing.T) {
	set := labels.Set{"a": "b"}
	for _, projection := range []Projection{Keys, Metadata} {
		l := newLackRig(t, func(o *Options) { o.Projection = projection })
		l.want("before the first list", widgetWrite("10", set), true)
		l.want("before the first list", removal("", nil), true)
		l.list("9")
		l.want("an older list", widgetWrite("10", set), true)
		l.want("a write before the list", widgetWrite("9", set), false)
		l.does(func() error { return l.r.Add(withUID(object("b", "10"), "b")) })
		l.want("another object's event", widgetWrite("10", set), false)
		l.want("a newer write", widgetWrite("12", set), true)
		l.does(func() error {
			return l.r.Apply(apiwatch.Event{Type: apiwatch.Bookmark, Object: object("", "12")})
		})
		l.want("a bookmark", widgetWrite("12", set), false)
		l.want("a version that is no number", widgetWrite("x", set), false)
		l.does(func() error { return l.r.Add(withUID(object("a", "13"), "a")) })
		l.want("removed, but there", removal("", nil), true)
		l.want("removed, but there", removal("13", set), true)
		another := removal("", nil)
		another.UID = "z"
		l.want("an earlier object with the name was removed", another, false)
		l.does(func() error { return l.r.Delete(withUID(object("a", "14"), "a")) })
		l.want("removed", removal("13", set), false)
		l.want("removed", removal("", nil), false)
		l.want("created and removed", removal("15", set), true)
		l.list("15")
		l.want("created and removed, and listed since", removal("15", set), false)
		l.does(func() error { l.r.endRun(); return nil })
		l.want("before the first list of the next session", widgetWrite("15", set), true)
	}
}

// A cache lacks nothing that it will not show.
func TestLacks_OnlyWhatTheWatchSelects(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Options)
		write  writes.Write
		want   bool
	}{
		"labels":            {func(o *Options) { o.LabelSelector = "x=1" }, widgetWrite("2", labels.Set{"x": "1"}), true},
		"other labels":      {func(o *Options) { o.LabelSelector = "x=1" }, widgetWrite("2", labels.Set{}), false},
		"scaled":            {func(o *Options) { o.LabelSelector = "x=1" }, scaled("2"), false},
		"namespace":         {func(o *Options) { o.Namespaces = "ns" }, widgetWrite("2", nil), true},
		"another namespace": {func(o *Options) { o.Namespaces = "other" }, widgetWrite("2", nil), false},
		"the name":          {func(o *Options) { o.FieldSelector = "metadata.name=a" }, widgetWrite("2", nil), true},
		"another name":      {func(o *Options) { o.FieldSelector = "metadata.name=b" }, widgetWrite("2", nil), false},
		"not the name":      {func(o *Options) { o.FieldSelector = "metadata.name!=a" }, widgetWrite("2", nil), false},
		"another field":     {func(o *Options) { o.FieldSelector = "spec.x=b" }, widgetWrite("2", nil), true},
		"one of several writes": {
			func(o *Options) { o.LabelSelector = "x=1" },
			writes.Write{Namespace: "ns", Name: "a", States: []writes.State{
				{Version: "2", Labels: labels.Set{"x": "1"}}, {Version: "3"},
			}}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLackRig(t, test.change)
			l.want("before the first list", test.write, test.want)
			l.list("1")
			l.want("afterwards", test.write, test.want)
		})
	}
	t.Run("an object that leaves the selection", func(t *testing.T) {
		l := newLackRig(t, func(o *Options) { o.LabelSelector = "a=b" })
		l.list("1", withUID(object("a", "1"), "a"))
		l.want("the event has not arrived", widgetWrite("2", labels.Set{}), true)
		l.does(func() error { return l.r.Delete(withUID(object("a", "2"), "a")) })
		l.want("the event has arrived", widgetWrite("2", labels.Set{}), false)
	})
	t.Run("a transform that removes UIDs", func(t *testing.T) {
		l := newLackRig(t, nil)
		l.list("1", object("a", "1"))
		l.want("removed, but there", removal("1", nil), true)
	})
}

// Versions of different histories cannot be compared. After a restore, versions are lower.
func TestLacks_AfterARestore(t *testing.T) {
	l := newLackRig(t, nil)
	l.list("100")
	l.want("before the restore", widgetWrite("101", nil), true)
	if !l.s.Lacks(widgetWrite("50", nil), 1, new(Mark)) {
		t.Error("another watch has noticed the restore, but this cache, which is older, does not lack a later write")
	}
	l.s.pool.histories.begin(0, widgets.Group)
	l.list("49")
	l.want("a write before the restore", widgetWrite("101", nil), false)
	for version, want := range map[string]bool{"49": false, "50": true} {
		if got := l.s.Lacks(widgetWrite(version, nil), 1, new(Mark)); got != want {
			t.Errorf("lacks version %s after the restore: %t", version, got)
		}
	}
}

// A cache that will not show anything lacks nothing.
func TestLacks_NotIfRequestsFail(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.set(func() { srv.refuseLists[Metadata] = errors.New("no") })
		s := p.Subscribe(options(Metadata), nil)
		synctest.Wait()
		if s.Lacks(widgetWrite("10", nil), 0, new(Mark)) {
			t.Errorf("lacks a write in the state %s", s.State().Phase)
		}
		closeAndWait(s)
		if s.Lacks(widgetWrite("10", nil), 0, new(Mark)) {
			t.Error("lacks a write after it was closed")
		}
	})
}

func TestLacks_NotIfTheTypeCannotBeWatched(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("b")
		srv.set(func() {
			srv.refuseWatches[Metadata] = apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "watch",
				widgets.GroupResource(), "", "", 0, false)
		})
		s := p.Subscribe(options(Metadata), nil)
		defer closeAndWait(s)
		time.Sleep(time.Minute)
		if !s.HasSynced() || s.Lacks(widgetWrite("1000", nil), 0, new(Mark)) {
			t.Errorf("synced: %t, lacks a write: %t", s.HasSynced(), s.Lacks(widgetWrite("1000", nil), 0, new(Mark)))
		}
	})
}

// The watch of a pending replacement can lack a write that the current watch does not select.
func TestLacks_InThePendingReplacement(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		s := p.Subscribe(selecting(Metadata), nil)
		synctest.Wait()
		next := options(Full)
		next.LabelSelector = "x=2"
		srv.set(func() { srv.hang[Full] = true })
		s.Replace(next, noop, noop)
		synctest.Wait()
		for set, want := range map[string]bool{"2": true, "3": false} {
			if got := s.Lacks(widgetWrite("3", labels.Set{"x": set}), 0, new(Mark)); got != want {
				t.Errorf("lacks an object with the label %s before the first list of the replacement: %t", set, got)
			}
		}
		closeAndWait(s)
	})
}
