package listwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answer is how a scripted server answers one request. The zero answer is that of a healthy server: a list of one
// object at version 10, or a watch that stays open until its timeout.
type answer struct {
	err       error         // the request is refused
	hangs     bool          // no response, or no progress
	version   string        // of the list; "-" means that it has none
	pages     string        // the continue token of the list
	items     []watch.Event // of the list; one object by default
	events    []watch.Event // of the watch
	bookmarks time.Duration // the interval between bookmarks
	quiet     time.Duration // after this time, nothing is sent
	end       error         // what Next returns
	after     time.Duration // when end is returned
	endless   bool          // the watch ignores its timeout
	// endsAtOnce means that a streaming list ends after its initial events.
	endsAtOnce bool
}

// script is a server that answers requests as specified, and the ones that follow like a healthy server.
type script struct {
	streams bool    // streaming lists are supported by the client
	lists   *answer // the answer to all streaming lists, if not nil
	began   time.Time

	mu       sync.Mutex // guards the fields below
	answers  []answer
	forever  *answer // the answer to all further watches, if not nil
	requests []string
	open     int
}

func (s *script) IsWatchListSemanticsUnSupported() bool { return !s.streams }

// maxRequests is the number of requests that are answered. It ends loops without delays in synctest bubbles.
const maxRequests = 500

// next returns the answer to a request, and records the request.
func (s *script) next(kind string, o RequestOptions) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	version := o.ResourceVersion
	if version == "" {
		version = "latest"
	}
	text := fmt.Sprintf("%s %s %s", time.Since(s.began).Round(time.Millisecond), kind, version)
	if o.Continue != "" {
		text += " page " + o.Continue
	}
	if o.JSON {
		text += " as JSON"
	}
	s.requests = append(s.requests, text)
	if len(s.requests) > maxRequests {
		return answer{hangs: true}
	}
	if kind == "stream" && s.lists != nil {
		return *s.lists
	}
	if len(s.answers) > 0 {
		a := s.answers[0]
		s.answers = s.answers[1:]
		return a
	}
	if s.forever != nil && kind != "list" {
		return *s.forever
	}
	return answer{}
}

func (s *script) sent() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

func thing(name, version string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

func event(eventType watch.EventType, name, version string) watch.Event {
	return watch.Event{Type: eventType, Object: thing(name, version)}
}

func (a answer) list() []watch.Event {
	if a.items != nil {
		return a.items
	}
	return []watch.Event{event(watch.Added, "a", "5")}
}

func (s *script) List(
	ctx context.Context, o RequestOptions, item func(runtime.Object),
) (metav1.ListMeta, error) {
	a := s.next("list", o)
	if a.hangs {
		<-ctx.Done()
		return metav1.ListMeta{}, ctx.Err()
	}
	if a.err != nil {
		return metav1.ListMeta{}, a.err
	}
	for _, e := range a.list() {
		item(e.Object)
	}
	m := metav1.ListMeta{ResourceVersion: "10", Continue: a.pages}
	if a.version != "" {
		m.ResourceVersion = strings.TrimPrefix(a.version, "-")
	}
	return m, nil
}

func (s *script) Watch(ctx context.Context, o RequestOptions) (Stream, error) {
	kind := "watch"
	if ptr.Deref(o.SendInitialEvents, false) {
		kind = "stream"
	}
	a := s.next(kind, o)
	switch {
	case a.hangs && kind == "watch":
		<-ctx.Done()
		return nil, ctx.Err()
	case a.err != nil:
		return nil, a.err
	}
	if kind == "stream" && !a.hangs && a.end == nil {
		end := event(watch.Bookmark, "", cmp.Or(a.version, "10"))
		end.Object.(*metav1.PartialObjectMetadata).Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		a.events = append(append(a.list(), end), a.events...)
	}
	if a.endsAtOnce {
		a.end = io.EOF
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	timeout := time.Duration(*o.TimeoutSeconds) * time.Second
	return &scriptStream{script: s, answer: a, opened: time.Now(), deadline: time.Now().Add(timeout)}, nil
}

type scriptStream struct {
	script   *script
	answer   answer
	opened   time.Time
	deadline time.Time
	marks    int
}

func (s *scriptStream) Next(ctx context.Context) (watch.Event, error) {
	if a := &s.answer; len(a.events) > 0 {
		next := a.events[0]
		a.events = a.events[1:]
		return next, nil
	}
	timer := time.NewTimer(time.Hour * 1000)
	var e watch.Event
	err := io.EOF
	switch a := s.answer; {
	case a.end != nil && (a.bookmarks == 0 || time.Duration(s.marks+1)*a.bookmarks >= a.after):
		timer.Reset(a.after - time.Since(s.opened))
		err = a.end
	case a.bookmarks > 0 && (a.quiet == 0 || time.Duration(s.marks+1)*a.bookmarks < a.quiet):
		s.marks++
		timer.Reset(time.Duration(s.marks)*a.bookmarks - time.Since(s.opened))
		e, err = event(watch.Bookmark, "", "10"), nil
	case a.endless, a.hangs, a.quiet > 0:
	default:
		timer.Reset(time.Until(s.deadline))
	}
	select {
	case <-timer.C:
		return e, err
	case <-ctx.Done():
		return watch.Event{}, ctx.Err()
	}
}

func (s *scriptStream) Close() {
	s.script.mu.Lock()
	defer s.script.mu.Unlock()
	s.script.open--
}

// things is a Store of versions by name.
type things struct {
	mu        sync.Mutex // guards the fields below
	versions  map[string]string
	collected map[string]string
	lists     int
	results   []ListResult
	clears    int
	min       string
	hang      chan struct{} // Apply waits for it, if not nil
}

func (s *things) MinVersion() string { return s.min }

func (s *things) BeginList() { s.collected = map[string]string{} }

func (s *things) Collect(e watch.Event) error { return put(s.collected, e) }

// rejectedName is the name of an object that the store rejects.
const rejectedName = "rejected"

var errRejected = errors.New("the store cannot use the object")

func put(versions map[string]string, e watch.Event) error {
	object, ok := e.Object.(*metav1.PartialObjectMetadata)
	if !ok {
		versions[fmt.Sprintf("%T", e.Object)] = ""
		return nil
	}
	switch {
	case object.Name == rejectedName:
		return errRejected
	case e.Type == watch.Deleted:
		delete(versions, object.Name)
	case e.Type != watch.Bookmark:
		versions[object.Name] = object.ResourceVersion
	}
	return nil
}

func (s *things) EndList(list ListResult, stored func()) {
	s.mu.Lock()
	s.versions, s.lists, s.results = s.collected, s.lists+1, append(s.results, list)
	s.mu.Unlock()
	stored()
}

func (s *things) Apply(e watch.Event) error {
	if s.hang != nil {
		<-s.hang
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return put(s.versions, e)
}

func (s *things) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions = map[string]string{}
	s.clears++
}

func (s *things) names() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, 0, len(s.versions))
	for name := range s.versions {
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// client makes requests by calling its functions. A request whose function is nil succeeds.
type client struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func (c client) List(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if c.list == nil {
		return &unstructured.UnstructuredList{}, nil
	}
	return c.list(ctx, o)
}

func (c client) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if c.watch == nil {
		return watch.NewFake(), nil
	}
	return c.watch(ctx, o)
}

// emptyList returns a list function that counts its calls and returns an empty list.
func emptyList(calls *atomic.Int64) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return func(context.Context, metav1.ListOptions) (runtime.Object, error) {
		calls.Add(1)
		list := &unstructured.UnstructuredList{}
		list.SetResourceVersion("1")
		return list, nil
	}
}
