package published

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/client-go/openapi"
)

// fake publishes documents and notes what it is asked for. It stands for a server that fails and changes as no real one
// does on demand.
type fake struct {
	mu        sync.Mutex
	documents map[string]string // by path
	hash      int
	asked     []string
	err       error         // of the index
	errOf     error         // of documents
	hold      chan struct{} // until which documents wait, if there is one
}

func (f *fake) PathsWithContext(context.Context) (map[string]openapi.GroupVersionWithContext, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, "index")
	if f.err != nil {
		return nil, f.err
	}
	paths := map[string]openapi.GroupVersionWithContext{}
	for path := range f.documents {
		paths[path] = &fakeDocument{f, path, f.hash}
	}
	return paths, nil
}

// takeAsked returns what was asked for since it was called before.
func (f *fake) takeAsked() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := strings.Join(f.asked, " ")
	f.asked = nil
	return asked
}

type fakeDocument struct {
	*fake
	path string
	hash int
}

func (d *fakeDocument) SchemaWithContext(ctx context.Context, _ string) ([]byte, error) {
	d.mu.Lock()
	d.asked = append(d.asked, d.path)
	hold, err, text := d.hold, d.errOf, d.documents[d.path]
	d.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return []byte(text), err
}

func (d *fakeDocument) ServerRelativeURL() string {
	return fmt.Sprintf("/openapi/v3/%s?hash=%d", d.path, d.hash)
}

// ofKind is a document with a kind that has a field.
func ofKind(gvk schema.GroupVersionKind, field string) string {
	return fmt.Sprintf(`{"components": {"schemas": {"a.Kind": {"type": "object", "properties": {%q: {"type": "string"}},
		"x-kubernetes-group-version-kind": [{"group": %q, "version": %q, "kind": %q}]}}}}`, field, gvk.Group, gvk.Version, gvk.Kind)
}

var (
	pod   = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	wheel = schema.GroupVersionKind{Group: "parts.example.com", Version: "v2", Kind: "Wheel"}
)

func published() *fake {
	return &fake{documents: map[string]string{"api/v1": ofKind(pod, "a"), "apis/parts.example.com/v2": ofKind(wheel, "b")}}
}

func fieldsOf(t *testing.T, s common.Schema) (names []string) {
	t.Helper()
	if s == nil {
		return nil
	}
	for name := range s.Properties() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestSchemas_readsADocumentOnce(t *testing.T) {
	f := published()
	s := New(f)
	first, name, err := s.For(t.Context(), pod)
	if err != nil || !slices.Equal(fieldsOf(t, first), []string{"a"}) || name == "" {
		t.Fatalf("%v %q %v", first, name, err)
	}
	again, same, err := s.For(t.Context(), pod)
	if err != nil || again != first || same != name {
		t.Errorf("again it is %v %q %v", again, same, err)
	}
	if got := f.takeAsked(); got != "index api/v1" {
		t.Errorf("asked for %s", got)
	}
	if other, _, err := s.For(t.Context(), wheel); err != nil || !slices.Equal(fieldsOf(t, other), []string{"b"}) {
		t.Errorf("%v, %v", other, err)
	}
	if got := f.takeAsked(); got != "apis/parts.example.com/v2" {
		t.Errorf("asked for %s", got)
	}
}

func TestSchemas_knowsNothingOfWhatIsNotPublished(t *testing.T) {
	for reason, c := range map[string]struct {
		kind   schema.GroupVersionKind
		change func(*fake)
	}{
		"a kind that there is not":          {schema.GroupVersionKind{Version: "v1", Kind: "Pot"}, func(*fake) {}},
		"a version that there is not":       {schema.GroupVersionKind{Version: "v2", Kind: "Pod"}, func(*fake) {}},
		"a server that publishes nothing":   {pod, func(f *fake) { f.err = apierrors.NewNotFound(schema.GroupResource{}, "openapi") }},
		"what is not for the platform":      {pod, func(f *fake) { f.err = apierrors.NewForbidden(schema.GroupResource{}, "openapi", nil) }},
		"a document that is gone meanwhile": {pod, func(f *fake) { f.errOf = apierrors.NewNotFound(schema.GroupResource{}, "api/v1") }},
		"a document not for the platform":   {pod, func(f *fake) { f.errOf = apierrors.NewForbidden(schema.GroupResource{}, "api/v1", nil) }},
		"a document without schemas":        {pod, func(f *fake) { f.documents["api/v1"] = `{}` }},
		"a document that is written unusual": {pod, func(f *fake) {
			f.documents["api/v1"] = `{"components": {"schemas": {"a": null, "b": [], "c": {"type": ["string"]}}}}`
		}},
	} {
		t.Run(reason, func(t *testing.T) {
			f := published()
			c.change(f)
			s := New(f)
			for range 2 {
				if described, name, err := s.For(t.Context(), c.kind); err != nil || described != nil || name != "" {
					t.Errorf("got %v %q %v", described, name, err)
				}
			}
			if got := f.takeAsked(); strings.Count(got, "index") != 1 || strings.Count(got, "api/v1") > 1 {
				t.Errorf("asked for %s", got)
			}
		})
	}
}

func TestSchemas_failsWhenTheServerDoes(t *testing.T) {
	down := errors.New("connection refused")
	for reason, change := range map[string]func(*fake){
		"no index":                func(f *fake) { f.err = down },
		"no document":             func(f *fake) { f.errOf = down },
		"a document that is torn": func(f *fake) { f.documents["api/v1"] = f.documents["api/v1"][:50] },
	} {
		t.Run(reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := published()
				change(f)
				s := New(f)
				fails := func(asks bool) {
					t.Helper()
					if _, _, err := s.For(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "read what is published of v1") {
						t.Errorf("got %v", err)
					}
					if asked := f.takeAsked(); (asked != "") != asks {
						t.Errorf("asked for %q", asked)
					}
				}
				fails(true)
				f.err, f.errOf, f.documents["api/v1"] = nil, nil, ofKind(pod, "a")
				time.Sleep(RetryPeriod - time.Nanosecond)
				fails(false)
				time.Sleep(time.Nanosecond)
				if described, _, err := s.For(t.Context(), pod); err != nil || described == nil {
					t.Errorf("afterwards %v, %v", described, err)
				}
			})
		})
	}
}

// What is known stays known while the index cannot be read again, unless somebody said that it has changed.
func TestSchemas_goesOnWithWhatItKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := published()
		s := New(f)
		if _, _, err := s.For(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * askedAgain)
		f.err = errors.New("connection refused")
		if described, _, err := s.For(t.Context(), pod); err != nil || described == nil {
			t.Errorf("got %v, %v", described, err)
		}
		if described, _, err := s.For(t.Context(), wheel); !errors.Is(err, f.err) {
			t.Errorf("of what was not read: got %v, %v", described, err)
		}
		s.Changed("")
		if described, _, err := s.For(t.Context(), pod); !errors.Is(err, f.err) {
			t.Errorf("after a change: got %v, %v", described, err)
		}
	})
}

// One who gives up says nothing of the API server.
func TestSchemas_whoGivesUpHoldsUpNobody(t *testing.T) {
	f := published()
	f.hold = make(chan struct{})
	s := New(f)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.For(ctx, pod); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(f.hold)
	if described, _, err := s.For(t.Context(), pod); err != nil || described == nil {
		t.Errorf("another got %v, %v", described, err)
	}
}

func TestSchemas_asksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := published()
		s := New(f)
		get := func(want, asked string) string {
			t.Helper()
			described, name, err := s.For(t.Context(), pod)
			if err != nil || strings.Join(fieldsOf(t, described), "") != want {
				t.Errorf("got %v, %v, want %s", fieldsOf(t, described), err, want)
			}
			if got := f.takeAsked(); got != asked {
				t.Errorf("asked for %q, want %q", got, asked)
			}
			return name
		}
		before := get("a", "index api/v1")
		f.documents["api/v1"], f.hash = ofKind(pod, "b"), 1
		get("a", "")
		s.Changed("apps") // of which nothing was asked
		get("a", "")
		s.Changed("")
		if after := get("b", "index api/v1"); after == before {
			t.Errorf("both are called %s", after)
		}
		s.Changed("")
		get("b", "index") // and the hash is the same

		time.Sleep(askedAgain - time.Second)
		get("b", "")
		f.documents["api/v1"], f.hash = ofKind(pod, "c"), 2
		time.Sleep(time.Second)
		get("c", "index api/v1")

		if _, _, err := s.For(t.Context(), schema.GroupVersionKind{Group: "new.example.com", Version: "v1", Kind: "New"}); err != nil {
			t.Fatal(err)
		}
		if got := f.takeAsked(); got != "index" {
			t.Errorf("for what may have come since it asked for %q", got)
		}
		s.Changed("new.example.com") // which was not there when it was asked for
		get("c", "index")
	})
}

func TestSchemas_letsManyWaitForOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := published()
		f.hold = make(chan struct{})
		s := New(f)
		var wait sync.WaitGroup
		for range 10 {
			wait.Go(func() {
				if described, _, err := s.For(t.Context(), pod); err != nil || described == nil {
					t.Errorf("got %v, %v", described, err)
				}
			})
		}
		synctest.Wait()
		close(f.hold)
		wait.Wait()
		if got := f.takeAsked(); strings.Count(got, "api/v1") != 1 {
			t.Errorf("asked for %s", got)
		}
	})
}

func TestSchemas_waitsNoLongerThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := published()
		f.hold = make(chan struct{})
		s, began := New(f), time.Now()
		if _, _, err := s.For(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "no answer within 10s") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took != patience {
			t.Errorf("it took %s", took)
		}
		close(f.hold)
	})
}

// What changed while the index was asked for may not be in it.
func TestSchemas_knowsThatAnIndexIsOld(t *testing.T) {
	f := published()
	s := New(during{f, func() {}})
	if _, _, err := s.For(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	s.Changed("")
	s.client = during{f, func() { s.Changed("") }}
	for range 2 {
		if _, _, err := s.For(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.takeAsked(); got != "index api/v1 index index" {
		t.Errorf("asked for %s", got)
	}
}

// One that is on its way when something changes is neither waited for nor kept.
func TestSchemas_waitsForNoIndexOfBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, late := published(), make(chan struct{})
		delete(f.documents, "apis/parts.example.com/v2")
		first := true
		s := New(after{f, func() {
			if first {
				first = false
				<-late
			}
		}})
		var wait sync.WaitGroup
		wait.Go(func() {
			if _, _, err := s.For(t.Context(), pod); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		f.documents["apis/parts.example.com/v2"] = ofKind(wheel, "b")
		s.Changed("")
		for _, when := range []string{"before", "after"} {
			if described, _, err := s.For(t.Context(), wheel); err != nil || !slices.Equal(fieldsOf(t, described), []string{"b"}) {
				t.Errorf("%s the late one comes it is %v, %v", when, fieldsOf(t, described), err)
			}
			if when == "before" {
				close(late)
				wait.Wait()
			}
		}
	})
}

// after does something when the index has been made up, before it arrives.
type after struct {
	*fake
	what func()
}

func (a after) PathsWithContext(ctx context.Context) (map[string]openapi.GroupVersionWithContext, error) {
	paths, err := a.fake.PathsWithContext(ctx)
	a.what()
	return paths, err
}

// during does something while the index is asked for.
type during struct {
	*fake
	what func()
}

func (d during) PathsWithContext(ctx context.Context) (map[string]openapi.GroupVersionWithContext, error) {
	d.what()
	return d.fake.PathsWithContext(ctx)
}
