package listwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/features"
	"k8s.io/client-go/util/watchlist"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/internal/protect"
)

const (
	minTimeout  = 5 * time.Minute // of a watch; the maximum is twice as long
	pageSize    = 500             // of lists that the API server reads from etcd
	timeoutSkew = time.Second     // tolerated difference between the API server's clock and the local one
	atOnceLimit = time.Second     // a watch without events that ends earlier was closed at once
	soonLimit   = 5 * time.Second // a watch that ends earlier is followed by a delay
	flushTime   = 2 * time.Second // a proxy that held back the events of a watch sends them within this time at its end
)

// Options specifies which objects a Loop lists and watches.
type Options struct {
	Log           logr.Logger
	GVR           schema.GroupVersionResource
	LabelSelector string
	FieldSelector string
	// Observe, if not nil, is called when the phase or the message of the state has changed. It is called from any
	// goroutine, and without a lock.
	Observe func()
	// Relists is a relist limiter shared by several Loops; see NewRelistLimiter. If it is nil, the type is not treated as
	// a custom resource, and watches that were closed early are resumed without a relist.
	Relists *rate.Limiter
	// Gate, if not nil, limits how many requests of the Loops that share it wait for a response at the same time.
	Gate *Gate
	// ConnectionLost, if not nil, is called when a watch was closed early, or when the server cannot be reached.
	ConnectionLost func()
	// MaxDelay limits the delay after a failed request, except after failures that usually last, such as a missing
	// permission. It does not include the random part of the delay. It defaults to 30 seconds.
	MaxDelay time.Duration
	// Random returns a number in [0, 1) for the length of delays and timeouts. It defaults to rand.Float64.
	Random func() float64
}

// Loop lists and watches the objects of one type, and passes them to a store. It sends one request at a time, and uses
// one goroutine. The methods other than Run can be called from any goroutine.
type Loop struct {
	options  Options
	requests Requests
	store    Store
	*health
	control control
	memory  memory

	lastEvent atomic.Int64 // Unix time in nanoseconds

	// storing is held while an event of an open watch is stored, and while a list next to the watch begins or ends. A
	// goroutine that lists next to the watch holds it when it reads version.
	storing sync.Mutex

	// Used only by the goroutine of Run.
	version   string // of the last list, event or bookmark of this run
	oldest    string // the oldest version that the current list may have
	latest    bool   // the current list is of the most recent version
	synthetic bool   // the watch began without a version, and its events so far are unordered
	paged     bool   // the server pages lists of any version
	unpaged   bool   // a page was refused with 410, so that the next list must not be paged
	panicked  bool   // a panic has been logged as an error
}

// NewLoop returns a loop for the objects of requests.
func NewLoop(requests Requests, store Store, options Options) *Loop {
	if options.Observe == nil {
		options.Observe = func() {}
	}
	if options.ConnectionLost == nil {
		options.ConnectionLost = func() {}
	}
	if options.Random == nil {
		options.Random = rand.Float64
	}
	if options.MaxDelay == 0 {
		options.MaxDelay = longDelay
	}
	l := &Loop{
		options: options, requests: requests, store: store, health: newHealth(options.Observe),
		control: control{wake: make(chan struct{}, 1)},
		memory: memory{
			random: options.Random, maxDelay: options.MaxDelay, early: &earlyRelists{shared: options.Relists},
		},
	}
	// The API server requires a dot in the group of a CRD.
	if options.Relists != nil && strings.Contains(options.GVR.Group, ".") {
		l.memory.early.own = rate.NewLimiter(rate.Every(earlyRelistPeriod), maxEarlyRelists)
	}
	_, l.memory.relists = store.(RelistStore)
	streams := features.FeatureGates().Enabled(features.WatchListClient)
	if !streams || watchlist.DoesClientNotSupportWatchListSemantics(requests) {
		l.memory.lacks, l.memory.client = NoStreaming, NoStreaming
	}
	return l
}

// State returns the current state.
func (l *Loop) State() State {
	s := l.health.State()
	if last := l.lastEvent.Load(); last != 0 {
		s.LastEvent = time.Unix(0, last)
	}
	return s
}

// Wake ends the current delay. If no delay is in progress, it ends the next one. The backoff is reset.
func (l *Loop) Wake() {
	select {
	case l.control.wake <- struct{}{}:
	default:
	}
}

// Relist ends the current request and lists again.
func (l *Loop) Relist() { l.control.interrupt(relistRequested) }

// NewHistory must be called when the server's storage has been restored from a backup. It ends the current request and
// lists the most recent version. The version from which the watch would be resumed can be in the future, or belong to
// other objects.
func (l *Loop) NewHistory() { l.control.interrupt(historyBegan) }

// Vanish must be called when the type no longer exists. The phase is NotFound at once, and stays until a request fails
// or a watch is open again. If Run has sent a request, the objects are removed from the store.
func (l *Loop) Vanish() {
	if l.health.vanish(errVanished) {
		l.control.interrupt(vanished)
		l.Wake()
	}
}

// Run lists and watches until ctx is cancelled. It returns when all its requests have ended. It can be called again. If
// a request panics or calls runtime.Goexit, for example in a transport, the request counts as failed.
func (l *Loop) Run(ctx context.Context) {
	l.version = ""
	m := &l.memory
	*m = memory{
		lacks: m.lacks, client: m.client, learned: m.learned, random: m.random, maxDelay: m.maxDelay, early: m.early,
		relists: m.relists,
	}
	m.early.reset()
	l.health.begin()
	defer l.health.end()
	defer l.control.end()
	next := step{request: l.memory.list()}
	protect.Resume(func() {
		for l.wait(ctx, next.delay) {
			l.advance(ctx, &next)
		}
	})
}

// advance sends a request, and replaces it with the next one.
func (l *Loop) advance(ctx context.Context, s *step) {
	o := outcome{kind: failed, err: errExited}
	defer func() { // also called by runtime.Goexit
		if ctx.Err() == nil {
			l.logMistake(o.err)
			*s = l.next(s.request, o)
		}
	}()
	if panicked := protect.Call(func() { o = l.send(ctx, *s) }); panicked != nil {
		o.err = panicked
	}
}

// logMistake logs a panic or a call to runtime.Goexit in a request. The first one is logged as an error.
func (l *Loop) logMistake(err error) {
	mistake, isPanic := errors.AsType[*protect.Mistake](err)
	if !isPanic && !errors.Is(err, errExited) {
		return
	}
	const message = "Request panicked"
	if l.panicked {
		l.options.Log.V(1).Info(message, "error", err.Error())
		return
	}
	l.panicked = true
	log := l.options.Log
	if isPanic {
		log = log.WithValues("stack", string(mistake.Stack))
	}
	log.Error(err, message)
}

// next decides on the next request, and records the outcome of the last one.
func (l *Loop) next(sent request, o outcome) step {
	s := l.memory.decide(sent, o, time.Now())
	switch o.kind {
	case vanished:
		l.store.Clear()
	case closedEarly, closedSoon, unreachable, unavailable:
		l.options.ConnectionLost()
	}
	if o.err != nil {
		l.options.Log.V(1).Info("Request failed",
			"request", sent.String(), "error", o.err.Error(), "next", s.request.String(), "delay", s.delay)
		r := rules[o.kind]
		l.health.failed(problem{phase: r.phase, err: o.err, soft: r.soft, opened: o.open > 0})
	}
	l.health.ended(s.delay)
	return s
}

// wait waits for the delay. It returns false if ctx is cancelled.
func (l *Loop) wait(ctx context.Context, delay time.Duration) bool {
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.control.wake:
			l.memory.failures = 0
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// send sends a request and returns its outcome.
func (l *Loop) send(ctx context.Context, s step) outcome {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !l.control.prepare(cancel) {
		return l.interrupted()
	}
	l.progress.queued.Store(true)
	leave, err := l.options.Gate.enter(ctx, s.request)
	l.progress.queued.Store(false)
	if err != nil {
		return l.failed(ctx, s.request, err)
	}
	if !l.control.begin(cancel) {
		leave()
		return l.interrupted()
	}
	l.health.sent(s.request)
	if s.request == listRequest {
		return l.list(ctx, cancel, leave)
	}
	return l.watch(ctx, cancel, s, leave)
}

// failed returns the outcome of a request that failed with err. If the request was cancelled, the cause determines the
// outcome.
func (l *Loop) failed(ctx context.Context, sent request, err error) outcome {
	cause := context.Cause(ctx)
	if limit, ok := errors.AsType[*limitError](cause); ok {
		return outcome{kind: limit.kind, err: limit}
	}
	if errors.Is(cause, errInterrupted) {
		return l.interrupted()
	}
	return outcomeOf(sent, err)
}

// interrupted returns the outcome of a request that was cancelled because of a command.
func (l *Loop) interrupted() outcome {
	o := outcome{kind: l.control.take()}
	if o.kind == vanished {
		o.err = errVanished
	}
	return o
}

// list requests all pages of a list. It calls answered when a response has arrived, or before it returns.
func (l *Loop) list(ctx context.Context, cancel context.CancelCauseFunc, answered func()) outcome {
	defer answered()
	dog := newWatchdog(cancel, listLimit, stalled)
	defer dog.stop()
	options := l.listOptions()
	options.Answered = answered
	l.store.BeginList()
	received := newPages()
	for {
		before := l.progress.items.Load()
		m, err := l.page(ctx, dog, options, func(object runtime.Object) error {
			return l.collect(watch.Event{Type: watch.Added, Object: object})
		})
		if err == nil && m.Continue != "" {
			err = received.next(ctx, m.Continue, l.progress.items.Load()-before)
		}
		if err != nil {
			o := l.failed(ctx, listRequest, err)
			l.unpaged = o.kind == expired && options.Continue != ""
			return o
		}
		if m.Continue == "" {
			dog.pause()
			if err := l.endList(m.ResourceVersion, false); err != nil {
				return outcomeOf(listRequest, err)
			}
			return outcome{kind: listed}
		}
		l.paged = l.paged || options.ResourceVersion == "0"
		options.ResourceVersion, options.ResourceVersionMatch, options.Continue = "", "", m.Continue
	}
}

// page requests a page of a list. The time that the client's rate limiter takes does not count.
func (l *Loop) page(
	ctx context.Context, dog *watchdog, options RequestOptions, collect func(runtime.Object) error,
) (metav1.ListMeta, error) {
	if throttled, ok := l.requests.(interface{ Throttle(context.Context) error }); ok {
		dog.pause()
		l.progress.throttled.Store(true)
		err := throttled.Throttle(ctx)
		l.progress.throttled.Store(false)
		if err != nil {
			return metav1.ListMeta{}, err
		}
	}
	dog.touch()
	var rejects error
	m, err := l.requests.List(ctx, options, func(object runtime.Object) {
		dog.pause()
		if rejects == nil {
			rejects = collect(object)
		}
		dog.touch()
	})
	l.progress.answered.Store(true)
	return m, cmp.Or(err, ctx.Err(), rejects)
}

// listOptions returns the options of a plain list. The first list of a store can have any version. A later one must not
// be older than the store: an API server whose watch cache lags behind could otherwise return a state without some of
// the objects in the store, which would be reported as deleted.
func (l *Loop) listOptions() RequestOptions {
	options := l.requestOptions()
	options.Limit = pageSize
	l.oldest = l.oldestVersion()
	l.latest = false
	switch oldest := l.oldest; {
	case l.memory.latest, oldest != "" && !isComparable(oldest) && l.version == "":
		l.latest = true
	case oldest == "":
		options.ResourceVersion = "0"
	default:
		options.ResourceVersion, options.ResourceVersionMatch = oldest, metav1.ResourceVersionMatchNotOlderThan
		if !l.paged { // with a limit, the API server may read from etcd rather than from its watch cache
			options.Limit = 0
		}
	}
	if l.unpaged {
		options.Limit = 0
	}
	return options
}

// oldestVersion returns the oldest version that a list may have.
func (l *Loop) oldestVersion() string {
	oldest := l.store.MinVersion()
	if l.version != "" && !isNewer(oldest, l.version) {
		return l.version
	}
	return oldest
}

// isNewer reports whether the version is newer than the other one. It returns false if the versions cannot be compared.
func isNewer(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order > 0
}

// isComparable reports whether the order of the version and others is known.
func isComparable(version string) bool {
	_, err := resourceversion.CompareResourceVersion(version, version)
	return err == nil
}

func (l *Loop) requestOptions() RequestOptions {
	return RequestOptions{
		ListOptions: metav1.ListOptions{LabelSelector: l.options.LabelSelector, FieldSelector: l.options.FieldSelector},
		JSON:        l.memory.lacks.Has(NoProtobuf),
	}
}

// collect passes an item of a list to the store.
func (l *Loop) collect(item watch.Event) error {
	l.progress.answered.Store(true)
	l.progress.items.Add(1)
	if err := l.store.Collect(item); err != nil {
		return rejection{err}
	}
	return nil
}

// endList passes the end of a list to the store. It returns an error for a list that is older than requested: a server
// with several replicas can answer with an outdated state. If a list of the most recent version is older, the history
// of the versions went back.
func (l *Loop) endList(version string, streaming bool) error {
	wentBack := isNewer(l.oldest, version)
	if wentBack && !l.latest {
		return fmt.Errorf("%w: got version %s, want %s or later", errOutdated, version, l.oldest)
	}
	l.version, l.unpaged = version, false
	l.memory.lacks &^= NoVersions
	if version == "" {
		l.memory.lacks |= NoVersions
	}
	l.lastEvent.Store(time.Now().UnixNano())
	l.store.EndList(ListResult{version, wentBack}, func() {
		polled := !streaming && l.memory.lacks.Has(NoWatch)
		l.health.completed(streaming, polled, l.memory.lacks)
	})
	return nil
}

// watch requests a watch or a streaming list, and reads it until it ends. It calls answered when a response has
// arrived.
func (l *Loop) watch(ctx context.Context, cancel context.CancelCauseFunc, s step, answered func()) outcome {
	dog := newWatchdog(cancel, headersLimit, unanswered)
	defer dog.stop()
	if s.request == streamRequest {
		dog.limit(streamLimit, streamStalled, time.Now().Add(streamTotal), streamStalled)
	}
	r := reading{Loop: l, dog: dog, sent: s.request, requested: time.Now(), silences: l.memory.silences}
	options := l.watchOptions(s)
	r.timeout = time.Duration(*options.TimeoutSeconds) * time.Second
	stream, err := l.requests.Watch(ctx, options)
	answered() // not deferred, so that it is not kept while the watch is open; after a panic, the turn ends by itself
	if err != nil {
		return l.failed(ctx, s.request, err)
	}
	defer stream.Close()
	defer l.health.closed() // before Close, which can take long
	if s.request == streamRequest {
		l.store.BeginList()
	} else {
		r.open(watchRequest)
	}
	if s.relists {
		defer l.startRelist(ctx)()
	}
	return r.read(ctx, stream)
}

// watchOptions returns the options of a watch or a streaming list.
func (l *Loop) watchOptions(s step) RequestOptions {
	options := l.requestOptions()
	timeout := minTimeout + time.Duration(l.options.Random()*float64(minTimeout))
	if s.timeout > 0 {
		timeout = min(timeout, s.timeout+time.Second-1) // rounded up
	}
	options.Watch, options.AllowWatchBookmarks = true, true
	options.TimeoutSeconds = ptr.To(int64(timeout / time.Second))
	if s.request == watchRequest {
		options.ResourceVersion = l.version
		l.synthetic = l.version == "" || l.version == "0"
		return options
	}
	l.oldest = l.oldestVersion()
	options.SendInitialEvents = ptr.To(true)
	options.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	if l.latest = l.memory.latest || l.version == ""; !l.latest {
		options.ResourceVersion = l.oldest
	}
	l.synthetic = true
	return options
}

// reading is the state of a watch that is being read.
type reading struct {
	*Loop
	dog       *watchdog
	sent      request
	requested time.Time
	timeout   time.Duration
	opened    time.Time // zero while the initial events of a streaming list arrive
	events    int       // received by the open watch
	bookmarks bool      // a bookmark has arrived in the open watch
	first     time.Time // when the first event or bookmark arrived in the open watch
	silences  int       // memory.silences when the request was sent
}

// open is called when the watch is open: after the headers, or after the initial events of a streaming list.
func (r *reading) open(after request) {
	r.opened = time.Now()
	r.limit(r.memory.silence())
	select {
	case <-r.control.wake: // it was meant for a delay before this watch
	default:
	}
	if after == watchRequest {
		r.health.opened()
	}
}

// limit sets the time limits of the open watch.
func (r *reading) limit(silence time.Duration) {
	r.dog.limit(silence, silent, r.requested.Add(r.timeout+timeoutSlack), overdue)
}

// read reads events until the watch ends.
func (r *reading) read(ctx context.Context, stream Stream) outcome {
	for {
		event, err := stream.Next(ctx)
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && event.Type == watch.Error {
			err = apierrors.FromObject(event.Object)
		}
		if err != nil {
			return r.ended(ctx, err)
		}
		r.dog.pause()
		if err := r.apply(event); err != nil {
			return r.ended(ctx, err)
		}
		r.lastEvent.Store(r.dog.touch())
	}
}

// apply passes an event to the store. It returns an error if the watch must end.
func (r *reading) apply(event watch.Event) error {
	version := ""
	m, err := meta.Accessor(event.Object)
	if err == nil { // otherwise, the store decides what to do
		version = m.GetResourceVersion()
	}
	switch {
	case !r.opened.IsZero():
		r.events++
		if err := r.storeChange(event, version); err != nil {
			return rejection{err}
		}
		r.received(event.Type == watch.Bookmark)
	case event.Type != watch.Bookmark:
		return r.collect(event)
	case err == nil && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true":
		r.dog.limit(0, 0, time.Time{}, 0) // the list is complete; event handlers can take long
		if err := r.endList(version, true); err != nil {
			return err
		}
		r.open(streamRequest)
		r.synthetic = false
		r.memory.listed()
		r.memory.streamed()
	}
	return nil
}

// storeChange passes an event of an open watch to the store.
func (r *reading) storeChange(event watch.Event, version string) error {
	r.storing.Lock()
	defer r.storing.Unlock()
	r.advance(event.Type, version)
	return r.store.Apply(event)
}

// received is called when an event has arrived in the open watch.
func (r *reading) received(isBookmark bool) {
	if r.first.IsZero() {
		r.first = time.Now()
	}
	if isBookmark && !r.bookmarks {
		r.bookmarks = true
		r.limit(silenceLimit)
	} else if r.memory.silences > 0 && !r.bookmarks {
		r.limit(0)
	}
	r.memory.silences = 0
}

// advance moves the version from which the watch is resumed.
func (r *reading) advance(eventType watch.EventType, version string) {
	if r.synthetic && eventType == watch.Added || version == "" {
		return
	}
	r.synthetic = false
	if eventType != watch.Bookmark || !isNewer(r.version, version) {
		r.version = version
	}
}

// ended returns the outcome of a watch that ended with err.
func (r *reading) ended(ctx context.Context, err error) outcome {
	open := time.Duration(0)
	if !r.opened.IsZero() {
		open = max(time.Since(r.opened), 1)
	}
	sent := r.sent
	if open > 0 {
		sent = watchRequest
	}
	isEnd := errors.Is(err, io.EOF) || isLost(err)
	var o outcome
	switch {
	case context.Cause(ctx) != nil || !isEnd:
		o = r.failed(ctx, sent, err)
	case open == 0:
		o = outcome{kind: streamIncomplete, err: errIncomplete}
	case time.Since(r.requested) >= r.timeout-timeoutSkew && open >= min(atOnceLimit, r.timeout/2):
		o = outcome{kind: closed}
	case open < atOnceLimit && r.events == 0:
		o = outcome{kind: closedAtOnce, err: ErrClosedAtOnce}
	case open < soonLimit:
		o = outcome{kind: closedSoon}
	default:
		o = outcome{kind: closedEarly}
	}
	ended := o.kind == closed || o.kind == overdue
	if ended && !r.first.IsZero() && time.Since(r.first) < flushTime && open > time.Minute {
		r.memory.silences = max(r.silences, 1) // all events arrived at the end: a proxy may have held them back
	}
	o.open = open
	return o
}

var (
	// ErrClosedAtOnce is the problem of a type whose watch was closed as soon as it was opened.
	ErrClosedAtOnce = errors.New("the watch was closed as soon as it was opened")

	errVanished   = errors.New("a type event reported that the type is gone")
	errOutdated   = errors.New("the list is older than requested")
	errIncomplete = errors.New("the streaming list ended before it was complete")
	errExited     = errors.New("the request called runtime.Goexit")
)
