package events

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
	"unicode/utf8"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	typedv1 "k8s.io/client-go/kubernetes/typed/events/v1"
)

// server is a fake API server for events.
type server struct {
	typedv1.EventInterface
	// before is called before an event is created. Optional.
	before func(context.Context, *eventsv1.Event) error

	mu     sync.Mutex // guards events
	events []*eventsv1.Event
}

func (s *server) Events(string) typedv1.EventInterface { return s }

func (s *server) Create(ctx context.Context, e *eventsv1.Event, _ metav1.CreateOptions) (*eventsv1.Event, error) {
	if s.before != nil {
		if err := s.before(ctx, e); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
	return e, nil
}

// notes returns the notes of the events in the order in which they were created.
func (s *server) notes() (notes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		notes = append(notes, e.Note)
	}
	return notes
}

func newObject(namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("example.com/v1")
	object.SetKind("Website")
	object.SetNamespace(namespace)
	object.SetName(name)
	object.SetUID(types.UID("uid of " + namespace + "/" + name))
	return object
}

// record records events while the Recorder runs, and waits until all of them are written.
func record(t *testing.T, r *Recorder, all ...Event) {
	t.Helper()
	err := r.Run(t.Context(), func(context.Context) error {
		for _, e := range all {
			r.Record(e)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRecorder_WritesEventsInOrder(t *testing.T) {
	s := &server{}
	r := New(logr.Discard(), s)
	flowers, website := newObject("shop", "flowers"), newObject("", "websites")
	record(t, r, Event{Regarding: flowers, Reason: ChildrenApplied, Note: "a"},
		Event{Regarding: flowers, Reason: Failed, Note: "b"}, Event{Regarding: website, Reason: Accepted, Note: "c"})
	if notes := s.notes(); !slices.Equal(notes, []string{"a", "b", "c"}) {
		t.Fatalf("got %q", notes)
	}
	e := s.events[1]
	want := corev1.ObjectReference{
		APIVersion: "example.com/v1", Kind: "Website", Namespace: "shop", Name: "flowers", UID: flowers.GetUID(),
	}
	if e.Regarding != want || e.Namespace != "shop" || e.Type != "Warning" || e.Reason != "Failed" ||
		e.Action != "Reconcile" || e.ReportingController == "" || e.ReportingInstance == "" || e.EventTime.IsZero() {
		t.Errorf("got %+v", e)
	}
	if e.Name == s.events[0].Name {
		t.Errorf("two events are named %s", e.Name)
	}
	if e := s.events[2]; e.Namespace != metav1.NamespaceDefault || e.Regarding.Namespace != "" || e.Type != "Normal" {
		t.Errorf("got event %+v for a cluster-scoped object", e)
	}
}

func TestRecorder_FieldsFitTheLimitsOfTheAPIServer(t *testing.T) {
	t.Setenv("POD_NAME", strings.Repeat("p", 253))
	s := &server{}
	long := newObject("shop", strings.Repeat("a", 198)+"."+strings.Repeat("b", 54))
	record(t, New(logr.Discard(), s), Event{Regarding: long, Reason: Failed, Note: strings.Repeat("ä", 600)},
		Event{Regarding: long, Reason: Failed, Note: strings.Repeat("a", 1024)})
	e := s.events[0]
	if problems := validation.IsDNS1123Subdomain(e.Name); len(problems) > 0 {
		t.Errorf("the name %s: %q", e.Name, problems)
	}
	if len(e.Note) > 1024 || len(e.Note) < 1000 || !utf8.ValidString(e.Note) || !strings.HasSuffix(e.Note, "ä...") {
		t.Errorf("got a note with %d bytes: %s", len(e.Note), e.Note)
	}
	if len(s.events[1].Note) != 1024 || strings.HasSuffix(s.events[1].Note, "...") {
		t.Error("a note that fits was shortened")
	}
	if len(e.ReportingInstance) > 128 {
		t.Errorf("got an instance with %d bytes", len(e.ReportingInstance))
	}
}

// Another process gives the event the same name. The API server then rejects the second one.
func TestRecorder_KeyIdentifiesAnEvent(t *testing.T) {
	name := func(e Event) string {
		s := &server{}
		record(t, New(logr.Discard(), s), e)
		return s.events[0].Name
	}
	flowers, trees := newObject("shop", "flowers"), newObject("shop", "trees")
	one := Event{Regarding: flowers, Reason: Parked, Key: "1"}
	first := name(one)
	if name(one) != first {
		t.Error("the same event got two names")
	}
	for _, other := range []Event{
		{Regarding: flowers, Reason: Parked, Key: "2"}, {Regarding: flowers, Reason: Failed, Key: "1"},
		{Regarding: trees, Reason: Parked, Key: "1"}, {Regarding: flowers, Reason: Parked},
	} {
		if name(other) == first {
			t.Errorf("a different event got the same name: %+v", other)
		}
	}
}

func TestRecorder_LimitsEvents(t *testing.T) {
	const far = 1000
	for name, test := range map[string]struct {
		event func(i int) Event
		want  int
	}{
		"about one object": {func(int) Event { return Event{Regarding: newObject("a", "b"), Reason: Failed} }, objectBurst},
		"of one type": {func(i int) Event {
			return Event{Regarding: newObject("a", fmt.Sprint(i)), Reason: Ready}
		}, totalBurst},
		"of both types": {func(i int) Event {
			return Event{Regarding: newObject("a", fmt.Sprint(i)), Reason: []Reason{Ready, Failed}[i%2]}
		}, 2 * totalBurst},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				r := New(logr.Discard(), s)
				var all []Event
				for i := range far {
					all = append(all, test.event(i))
				}
				record(t, r, all...)
				if n := len(s.notes()); n != test.want {
					t.Errorf("got %d events, want %d", n, test.want)
				}
				time.Sleep(5 * time.Minute)
				record(t, r, all[0])
				if n := len(s.notes()); n != test.want+1 {
					t.Error("no event was written after the limiter was refilled")
				}
			})
		})
	}
}

func TestRecorder_NeverBlocks(t *testing.T) {
	r := New(logr.Discard(), &server{})
	for i := range 2 * maxQueued { // the queue is not read
		r.limits = newLimits(corev1.EventTypeNormal, corev1.EventTypeWarning)
		r.Record(Event{Regarding: newObject("a", fmt.Sprint(i)), Reason: Ready})
	}
	if len(r.queue) != maxQueued {
		t.Errorf("got %d queued events", len(r.queue))
	}
}

// Reconciles that are running when ctx is cancelled still record events.
func TestRun_WritesEventsRecordedDuringShutdown(t *testing.T) {
	s := &server{}
	r := New(logr.Discard(), s)
	ctx, cancel := context.WithCancel(t.Context())
	failure := errors.New("handlers are still running")
	err := r.Run(ctx, func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		r.Record(Event{Regarding: newObject("shop", "flowers"), Reason: Ready, Note: "late"})
		return failure
	})
	if !errors.Is(err, failure) || !slices.Equal(s.notes(), []string{"late"}) {
		t.Errorf("got error %v and events %q", err, s.notes())
	}
}

func TestRun_EndsIfTheAPIServerDoesNotRespond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{before: func(ctx context.Context, _ *eventsv1.Event) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		r := New(logr.Discard(), s)
		began := time.Now()
		record(t, r, slices.Repeat([]Event{{Regarding: newObject("shop", "flowers"), Reason: Ready, Note: "old"}}, 10)...)
		if took := time.Since(began); took != flushTimeout {
			t.Errorf("Run took %s", took)
		}
		s.before = nil
		record(t, r, Event{Regarding: newObject("shop", "flowers"), Reason: Ready, Note: "new"})
		if notes := s.notes(); !slices.Equal(notes, []string{"new"}) {
			t.Errorf("the next term wrote %q", notes)
		}
	})
}

// A hanging request delays later events, but no reconciles.
func TestRun_RequestsTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{before: func(ctx context.Context, e *eventsv1.Event) error {
			if e.Note == "hangs" {
				<-ctx.Done()
			}
			return ctx.Err()
		}}
		r := New(logr.Discard(), s)
		err := r.Run(t.Context(), func(context.Context) error {
			r.Record(Event{Regarding: newObject("shop", "flowers"), Reason: Ready, Note: "hangs"})
			r.Record(Event{Regarding: newObject("shop", "flowers"), Reason: Ready, Note: "next"})
			time.Sleep(writeTimeout + time.Second)
			synctest.Wait()
			if notes := s.notes(); !slices.Equal(notes, []string{"next"}) {
				t.Errorf("got %q", notes)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestRun_JoinsItsGoroutineAfterAPanic(t *testing.T) {
	s := &server{}
	r := New(logr.Discard(), s)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was lost")
			}
		}()
		_ = r.Run(t.Context(), func(context.Context) error {
			r.Record(Event{Regarding: newObject("shop", "flowers"), Reason: Ready, Note: "a"})
			panic("on purpose")
		})
	}()
	if notes := s.notes(); !slices.Equal(notes, []string{"a"}) {
		t.Errorf("got %q", notes)
	}
}

// Operators can fix a missing permission, but not the other errors.
func TestRecorder_LogsAMissingPermissionOnce(t *testing.T) {
	forbidden := func(message string, causes ...metav1.StatusCause) error {
		err := apierrors.NewForbidden(eventsv1.Resource("events"), "", nil)
		err.ErrStatus.Message, err.ErrStatus.Details.Causes = message, causes
		return err
	}
	const missing = `events.events.k8s.io is forbidden: User "a" cannot create resource "events" in API group ` +
		`"events.k8s.io" in the namespace "shop"`
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"permission": {forbidden(missing), 1},
		"namespace": {forbidden(`events.events.k8s.io "a" is forbidden: unable to create new content in namespace shop `+
			`because it is being terminated`, metav1.StatusCause{Type: corev1.NamespaceTerminatingCause}), 0},
		"quota":    {forbidden(`events.events.k8s.io "a" is forbidden: exceeded quota: count`), 0},
		"existing": {apierrors.NewAlreadyExists(eventsv1.Resource("events"), "a"), 0},
		"network":  {errors.New("connection refused"), 0},
	} {
		var lines []string
		log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
		r := New(log, &server{before: func(context.Context, *eventsv1.Event) error { return c.err }})
		record(t, r, slices.Repeat([]Event{{Regarding: newObject("shop", "flowers"), Reason: Ready}}, 3)...)
		if len(lines) != c.want {
			t.Errorf("%s: got log lines %q, want %d", name, lines, c.want)
		}
	}
}
