package typewatch

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// evaluations counts the calls of the functions that are passed to indexed.
var evaluations atomic.Int64

// indexed adds an index with the name "index" to the options.
func indexed(o Options, f func(*Object) []string) Options {
	o.Indexes = NewIndexes(map[string]func(*Object) []string{"index": func(o *Object) []string {
		evaluations.Add(1)
		return f(o)
	}})
	return o
}

// found returns the sorted keys that ByIndex returns.
func found(t testing.TB, view View, value string) (keys []string) {
	t.Helper()
	records, err := view.ByIndex("index", value)
	if err != nil {
		t.Errorf("ByIndex returned %v", err)
	}
	for _, r := range records {
		keys = append(keys, r.Key())
	}
	slices.Sort(keys)
	return keys
}

func expectFound(t testing.TB, step string, s *Subscription, value string, want ...string) {
	t.Helper()
	if got := found(t, s.View(), value); !slices.Equal(got, want) {
		t.Errorf("%s: ByIndex(%q) returned %q, want %q", step, value, got, want)
	}
}

// expectDropped checks that a former view, whose store is not empty, does not keep the contents of its index.
func expectDropped(t testing.TB, step string, former View) {
	t.Helper()
	for range 2 {
		before := evaluations.Load()
		if found(t, former, ""); evaluations.Load() == before {
			t.Errorf("%s: the former view has kept the contents of its index", step)
		}
	}
}

func constant(value string) func(*Object) []string {
	return func(*Object) []string { return []string{value} }
}

// byType returns the Go type of the decoded object.
func byType(o *Object) []string {
	decoded, err := o.Decode()
	if err != nil {
		return []string{err.Error()}
	}
	return []string{fmt.Sprintf("%T", decoded)}
}

const (
	fullType     = "*unstructured.Unstructured"
	metadataType = "*v1.PartialObjectMetadata"
)

// Two subscriptions share a watch, have different projections and use the same name for different indexes.
func TestIndexes_BelongToTheSubscription(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		full := p.Subscribe(indexed(options(Full), byType), nil)
		synctest.Wait()
		metadata := p.Subscribe(indexed(options(Metadata), byType), nil)
		none := p.Subscribe(options(Metadata), nil)
		synctest.Wait()
		expectWatches(t, srv, p, "the watch is shared", Full)
		expectFound(t, "full", full, fullType, "ns/a")
		expectFound(t, "metadata", metadata, metadataType, "ns/a")
		expectFound(t, "metadata", metadata, fullType)
		if _, err := none.View().ByIndex("index", ""); !errors.Is(err, ErrNoIndex) {
			t.Errorf("without indexes, ByIndex returned %v", err)
		}
		_, err := full.View().ByIndex("unknown", "")
		if !errors.Is(err, ErrNoIndex) || !strings.Contains(err.Error(), `["index"]`) {
			t.Errorf("for an unknown name, ByIndex returned %v", err)
		}
		former := metadata.View()
		closeAndWait(full) // the others move to a watch of the metadata
		srv.put("b")
		synctest.Wait()
		expectWatches(t, srv, p, "the subscription has moved", Metadata)
		expectFound(t, "after the move", metadata, metadataType, "ns/a", "ns/b")
		expectDropped(t, "after the move", former)
		closeAndWait(metadata)
		expectDropped(t, "after Close", metadata.View())
		metadata.Update("new", false, indexed(Options{}, byType).Indexes)
		expectDropped(t, "after Close and Update", metadata.View())
		expectFound(t, "after Close", metadata, metadataType, "ns/a", "ns/b")
		closeAndWait(none)
	})
}

func TestIndexes_FollowTheOptions(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.putWith("a", x1)
		s := p.Subscribe(indexed(options(Full), constant("first")), nil)
		synctest.Wait()
		expectFound(t, "Subscribe", s, "first", "ns/a")

		former := s.View()
		next := indexed(options(Full), constant("updated"))
		s.Update("value", false, next.Indexes)
		expectFound(t, "Update", s, "updated", "ns/a")
		expectDropped(t, "Update", former)
		before := evaluations.Load()
		s.Update("other value", true, next.Indexes)
		if expectFound(t, "another Update", s, "updated", "ns/a"); evaluations.Load() != before {
			t.Error("an update without new indexes has replaced them")
		}

		metadata := indexed(options(Metadata), byType)
		s.Update("value", false, metadata.Indexes)
		expectFound(t, "Update", s, fullType, "ns/a")
		former = s.View()
		s.Replace(metadata, noop, noop) // the same watch and indexes, with another projection
		expectFound(t, "replacement by the same watch", s, metadataType, "ns/a")
		expectDropped(t, "replacement by the same watch", former)
		s.Replace(indexed(options(Full), constant("full")), noop, noop)
		synctest.Wait()

		former = s.View()
		srv.set(func() { srv.hang[Full] = true })
		s.Replace(indexed(selecting(Full), constant("pending")), noop, noop)
		synctest.Wait()
		expectFound(t, "pending replacement", s, "full", "ns/a")
		s.Update("value", false, indexed(options(Full), constant("replaced")).Indexes)
		expectFound(t, "update of a pending replacement", s, "full", "ns/a")
		srv.set(func() { srv.hang[Full] = false })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		expectFound(t, "replacement", s, "replaced", "ns/a")
		expectDropped(t, "replacement", former)
		closeAndWait(s)
	})
}

// An event handler finds a changed object under its new value only.
func TestIndexes_ReflectAChangeWhenItIsDelivered(t *testing.T) {
	for _, projection := range []Projection{Metadata, Full} {
		s := newTestPool(newServer()).Subscribe(indexed(options(projection), func(o *Object) []string {
			return []string{o.GetResourceVersion()}
		}), nil)
		w := s.watch().reflectors[0]
		if err := w.Replace([]any{object("a", "1"), object("b", "2"), object("c", "3")}, "3"); err != nil {
			t.Fatal(err)
		}
		delivered := 0
		s.Attach(EventHandler{
			Known: func([]*Object) { expectFound(t, "Known", s, "1", "ns/a") }, Synced: func() {},
			Changed: func(c Change) {
				delivered++
				if c.New != nil {
					expectFound(t, "new value", s, c.New.GetResourceVersion(), c.Key)
				}
				if c.Old != nil {
					expectFound(t, "old value", s, c.Old.GetResourceVersion())
				}
			},
		})
		s.settle()
		err := errors.Join(w.Update(object("a", "4")), w.Add(object("d", "5")), w.Delete(object("b", "6")),
			w.Replace([]any{object("a", "4"), object("d", "7")}, "7"))
		if err != nil {
			t.Fatal(err)
		}
		if s.settle(); delivered != 5 {
			t.Errorf("%d changes", delivered)
		}
		closeAndWait(s)
	}
}

func TestIndexes_OfANamespacedWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		s := p.Subscribe(indexed(in("ns,other", Metadata), constant("value")), nil)
		synctest.Wait()
		reflectors := s.watch().reflectors
		elsewhere := object("b", "100")
		elsewhere.Namespace = "other"
		err := errors.Join(reflectors[0].Replace([]any{object("a", "100")}, "100"),
			reflectors[1].Replace([]any{elsewhere}, "100"))
		expectFound(t, "two namespaces", s, "value", "ns/a", "other/b")
		err = errors.Join(err, reflectors[0].Replace([]any{object("c", "101")}, "101"))
		expectFound(t, "a relist of one namespace", s, "value", "ns/c", "other/b")
		if err != nil {
			t.Error(err)
		}
		closeAndWait(s)
	})
}

func TestIndexes_With(t *testing.T) {
	declare := func(value string, names ...string) *Indexes {
		functions := map[string]func(*Object) []string{}
		for _, name := range names {
			functions[name] = constant(value)
		}
		return NewIndexes(functions)
	}
	ab, c := declare("existing", "a", "b"), declare("new", "c")
	for name, test := range map[string]struct{ x, other, want *Indexes }{
		"no indexes":         {nil, nil, nil},
		"no existing index":  {nil, c, c},
		"no other index":     {ab, nil, ab},
		"the same names":     {ab, declare("new", "a", "b"), ab},
		"some of the names":  {ab, declare("new", "b"), ab},
		"an empty set":       {ab, declare("new"), ab},
		"the same functions": {ab, ab, ab},
	} {
		if got := test.x.With(test.other); got != test.want {
			t.Errorf("%s: With returned %+v, want %+v", name, got, test.want)
		}
	}
	values := map[string]string{}
	for name, f := range ab.With(declare("new", "b", "c")).functions {
		values[name] = f(nil)[0]
	}
	want := map[string]string{"a": "existing", "b": "existing", "c": "new"}
	if !maps.Equal(values, want) || len(ab.functions) != 2 || len(c.functions) != 1 {
		t.Errorf("With returned %v, want %v", values, want)
	}
}

// If the function panics, the object has no values. The first panic of an index is logged as an error.
func TestD5_PanicOfAnIndexFunctionIsLogged(t *testing.T) {
	for verbosity, want := range map[int]int{0: 1, 1: 3} {
		var lines []string
		log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{Verbosity: verbosity})
		srv := newServer()
		p := NewPool(Config{Source: srv.source(), Log: func(schema.GroupVersionResource) logr.Logger { return log }})
		s := p.Subscribe(indexed(options(Metadata), func(o *Object) []string {
			if strings.HasPrefix(o.GetName(), "bad") {
				panic("on purpose")
			}
			return []string{"value"}
		}), nil)
		w := s.watch().reflectors[0]
		err := w.Replace([]any{object("good", "1"), object("bad", "1")}, "1")
		expectFound(t, "list", s, "value", "ns/good")
		err = errors.Join(err, w.Update(object("bad", "2")), w.Update(object("good", "2")), w.Add(object("bad-2", "2")))
		expectFound(t, "changes", s, "value", "ns/good")
		if err != nil {
			t.Error(err)
		}
		panics := slices.DeleteFunc(lines, func(line string) bool { return !strings.Contains(line, "on purpose") })
		if len(panics) != want || !strings.Contains(panics[0], `"index"="index" "object"="ns/bad"`) ||
			!strings.Contains(panics[0], `"stack"`) {
			t.Errorf("at verbosity %d, %d lines were logged, want %d: %.900q", verbosity, len(panics), want, panics)
		}
		closeAndWait(s)
	}
}

// A function that hangs blocks no change, no other subscription and no other index, and neither a move nor Close.
func TestS3_HungIndexFunctionBlocksNothingElse(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		hang := make(chan struct{})
		var hangs atomic.Bool
		hangs.Store(true)
		hung := indexed(options(Full), func(*Object) []string {
			if hangs.Load() {
				<-hang
			}
			return []string{"value"}
		})
		s := p.Subscribe(hung, nil)
		other := p.Subscribe(indexed(options(Full), constant("value")), nil)
		synctest.Wait()
		r := attachRecorder(other)
		r.take()
		var callers sync.WaitGroup
		for range 2 {
			callers.Go(func() { found(t, s.View(), "value") })
		}
		synctest.Wait()
		srv.put("b")
		synctest.Wait()
		r.expect(t, "change", "ns/b ->2")
		expectFound(t, "other subscription", other, "value", "ns/a", "ns/b")
		if function, _ := s.Busy(); function != "function of index index" {
			t.Errorf("busy with %q", function)
		}
		s.Update("value", false, indexed(options(Full), constant("updated")).Indexes)
		expectFound(t, "Update", s, "updated", "ns/a", "ns/b")
		closeAndWait(s)
		closeAndWait(other)
		hangs.Store(false)
		close(hang)
		callers.Wait()
		if function, _ := s.Busy(); function != "" {
			t.Errorf("at the end, busy with %q", function)
		}
	})
}
