package listwatch

import (
	"math"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// request is a kind of request.
type request uint8

const (
	streamRequest request = iota // a streaming list, which continues as a watch
	listRequest                  // a plain list
	watchRequest
)

func (r request) String() string { return [...]string{"streaming list", "list", "watch"}[r] }

// kind is what the server did: the way a request ended.
type kind uint8

const (
	listed           kind = iota // the list is complete
	closed                       // the watch ended at its timeout
	closedEarly                  // the watch ended before its timeout, or the connection was lost
	closedSoon                   // the watch ended within a few seconds
	closedAtOnce                 // the watch ended within a second, without an event
	overdue                      // the watch did not end at its timeout
	silent                       // bookmarks stopped arriving
	expired                      // 410
	tooLarge                     // the version is in the future
	outdated                     // a list is older than requested
	busy                         // 429
	forbidden                    // 401, 403
	notFound                     // 404
	noWatch                      // 405 or 501 for a watch
	notAcceptable                // 406
	streamInvalid                // 400 or 422 for a streaming list
	streamForbidden              // 401 or 403 for a streaming list
	streamRefused                // 404, 410 or 429 for a streaming list, for the third time
	streamStalled                // a streaming list without progress
	streamIncomplete             // a streaming list ended before its bookmark
	unanswered                   // no headers for a watch
	stalled                      // a plain list without progress
	unreachable                  // no connection
	unavailable                  // 502, 503, 504
	malformed                    // the response cannot be parsed
	rejected                     // the store returned an error
	failed                       // any other error
	vanished                     // a type event: the type is gone
	relistRequested              // Relist was called
	historyBegan                 // NewHistory was called
)

// next is the request that follows an outcome.
type next uint8

const (
	watchNext  next = iota // from the last version; types without watch are polled instead
	listNext               // a streaming list, if the server supports it
	plainNext              // a plain list
	latestNext             // a list of the most recent version
	sameNext               // the same request
)

// pace is the delay before the next request.
type pace uint8

const (
	atOnce   pace = iota // no delay
	upTo4s               // the backoff of watches that end soon, at most 4 s, so that the type stays synced
	upTo10s              // the backoff, at most 10 s; at least Retry-After
	upTo30s              // the backoff, at most 30 s; at least Retry-After
	lasting              // like upTo30s, after a problem that usually lasts, so that Options.MaxDelay does not apply
	repeated             // no delay, but lasting after an earlier problem
)

// rule is what follows an outcome.
type rule struct {
	next  next
	pace  pace
	phase Phase // of the type until the problem is over; empty if the outcome is not a problem
	soft  bool  // the phase begins tolerance after the watch was last open
	learn Lacks // what the server lacks
}

// rules is the table of docs/architecture.md. The message of a problem is the error of its outcome.
var rules = [...]rule{
	listed:           {next: watchNext, pace: atOnce},
	closed:           {next: watchNext, pace: atOnce},
	closedEarly:      {next: watchNext, pace: atOnce}, // custom resources: see earlyRelists
	closedSoon:       {next: watchNext, pace: upTo4s}, // custom resources: see earlyRelists
	closedAtOnce:     {next: listNext, pace: lasting, phase: Failing, soft: true},
	overdue:          {next: watchNext, pace: atOnce},
	silent:           {next: watchNext, pace: atOnce, phase: Failing},              // a second time: listNext, lasting
	expired:          {next: listNext, pace: repeated, phase: Failing, soft: true}, // of a list: latestNext
	tooLarge:         {next: latestNext, pace: repeated, phase: Failing, soft: true},
	outdated:         {next: latestNext, pace: repeated, phase: Failing, soft: true},
	busy:             {next: sameNext, pace: upTo10s, phase: Failing, soft: true},
	forbidden:        {next: listNext, pace: lasting, phase: Forbidden},
	notFound:         {next: listNext, pace: lasting, phase: NotFound},
	noWatch:          {next: listNext, pace: atOnce, learn: NoWatch}, // the first time, nothing is learned
	notAcceptable:    {next: sameNext, pace: repeated, phase: Failing, soft: true, learn: NoProtobuf},
	streamInvalid:    {next: plainNext, pace: atOnce, learn: NoStreaming},
	streamForbidden:  {next: plainNext, pace: atOnce},
	streamRefused:    {next: plainNext, pace: upTo10s, phase: Failing, soft: true}, // if lists work twice: NoStreaming
	streamStalled:    {next: plainNext, pace: atOnce, phase: Failing, learn: NoStreaming},
	streamIncomplete: {next: listNext, pace: upTo10s, phase: Failing, soft: true}, // after three: NoStreaming
	unanswered:       {next: listNext, pace: upTo30s, phase: Failing, soft: true},
	stalled:          {next: plainNext, pace: upTo30s, phase: Failing},
	unreachable:      {next: sameNext, pace: upTo10s, phase: Failing}, // a streaming list that was cut off: plainNext
	unavailable:      {next: sameNext, pace: upTo10s, phase: Failing}, // of a streaming list: plainNext
	malformed:        {next: plainNext, pace: upTo30s, phase: Failing},
	rejected:         {next: plainNext, pace: repeated, phase: Failing, soft: true},
	failed:           {next: listNext, pace: upTo30s, phase: Failing}, // of a streaming list: plainNext
	vanished:         {next: listNext, pace: atOnce, phase: NotFound},
	relistRequested:  {next: listNext, pace: atOnce},
	historyBegan:     {next: latestNext, pace: atOnce},
}

// The delays between requests. Each of them is lengthened by a random part.
const (
	minDelay       = 10 * time.Millisecond
	soonDelay      = 4 * time.Second
	briefDelay     = 10 * time.Second
	longDelay      = 30 * time.Second
	delayJitter    = 0.5
	retryJitter    = 0.1
	MaxRetryAfter  = time.Minute      // the longest Retry-After that is honored
	PollInterval   = 30 * time.Second // between the lists of a type that cannot be watched
	backoffReset   = time.Minute      // how long watches must be open without a problem to reset the backoff
	maxIncompletes = 3                // streaming lists that can end or fail before they are complete
	maxFallbacks   = 2                // plain lists that can work although streaming lists are refused
	maxRefusals    = 2                // watches that can be refused with 405 or 501
	forgetAfter    = time.Hour        // what a server was found to lack is then tried again

	// For some milliseconds after a CRD has been established, the API server rejects the watches of its type with 429, and
	// asks for a delay of a second. Until a watch has been open, the first rejections are followed by short delays.
	quickDelay   = time.Millisecond
	quickRetries = 8
)

// Lacks is the set of features that a server was found to lack for a type.
type Lacks uint8

const (
	NoStreaming Lacks = 1 << iota // streaming lists
	NoProtobuf                    // metadata as protobuf
	NoWatch                       // watches; the type is polled
	NoVersions                    // resourceVersions; each watch that ends is followed by a list
)

// Has reports whether the set contains the feature.
func (l Lacks) Has(feature Lacks) bool { return l&feature != 0 }

// outcome is the way a request ended.
type outcome struct {
	kind       kind
	err        error         // nil if the outcome is not a problem
	retryAfter time.Duration // as the server asked
	open       time.Duration // how long the watch was open; zero if it was never open
}

// step is the next request.
type step struct {
	request request
	delay   time.Duration
	timeout time.Duration // of a watch that must end earlier than usual, because a relist is due; otherwise zero
	relists bool          // a relist is due, and is requested while the watch is open
}

// memory is what decisions depend on, apart from the outcome.
type memory struct {
	lacks       Lacks
	client      Lacks         // what the client lacks; a part of lacks
	learned     time.Time     // when lacks last changed
	failures    int           // problems since the backoff was reset
	open        time.Duration // how long watches have been open since the last problem
	soon        int           // watches in a row that ended within a few seconds
	incompletes int           // streaming lists in a row that ended before they were complete
	errors      int           // streaming lists that failed since one was complete
	refused     int           // streaming lists that were answered with 404, 410 or 429 since one was complete
	fallbacks   int           // plain lists that were complete after such answers
	refusals    int           // watches that were refused with 405 or 501 since one was open
	silences    int           // silent watches since the last event or bookmark
	opened      bool          // a watch has been open in this run
	latest      bool          // the next list must be of the most recent version
	plain       bool          // the next list must be a plain one
	early       *earlyRelists
	relists     bool           // the store can receive a list while a watch is open
	maxDelay    time.Duration  // see Options
	random      func() float64 // in [0, 1)
}

// decide returns the request that follows an outcome. It is the only place where this is decided.
func (m *memory) decide(sent request, o outcome, now time.Time) step {
	if o.open > 0 {
		sent = watchRequest // a complete streaming list continues as a watch
		m.opened, m.refusals = true, 0
	}
	if now.Sub(m.learned) >= forgetAfter {
		m.lacks &= m.client | NoVersions
	}
	r := m.rule(sent, o)
	if r.learn != 0 && !m.lacks.Has(r.learn) {
		m.lacks, m.learned = m.lacks|r.learn, now
	}
	if o.kind != silent {
		m.open += o.open
	}
	if m.open >= backoffReset || m.polls(sent, o) {
		m.failures = 0
	}
	s := m.request(r.next, sent, now, m.delay(r.pace, sent, o))
	if r.phase != "" {
		m.failures++
		m.open = 0
	}
	if o.kind == closedSoon {
		m.soon++
	} else if o.open > 0 {
		m.soon = 0
	}
	return s
}

// rule returns the row of the table for an outcome. Some rows depend on what happened before.
func (m *memory) rule(sent request, o outcome) rule {
	r := rules[o.kind]
	switch o.kind {
	case listed:
		m.listed()
		if m.refused >= maxIncompletes {
			if m.fallbacks++; m.fallbacks >= maxFallbacks {
				r.learn = NoStreaming
			}
		}
	case closedEarly, closedSoon:
		m.early.request()
	case silent:
		if m.silences++; m.silences > 1 {
			r.next, r.pace = listNext, lasting
		}
	case streamStalled: // a proxy may hold responses back
		m.silences = max(m.silences, 1)
	case expired:
		if sent != watchRequest {
			r.next = latestNext
		}
		r = m.refusal(sent, o, r)
	case notFound, busy:
		r = m.refusal(sent, o, r)
	case noWatch:
		if m.refusals++; m.refusals < maxRefusals {
			r.learn = 0
		}
	case streamIncomplete:
		if m.incompletes++; m.incompletes >= maxIncompletes {
			r.learn = NoStreaming
		}
	case closed, overdue:
		if m.silences > 0 {
			r.next = listNext // the limit of the next watch exceeds its timeout
		}
	case failed, unavailable, unreachable:
		if sent == streamRequest && !utilnet.IsConnectionRefused(o.err) {
			r.next = plainNext
			if m.errors++; m.errors >= maxIncompletes {
				r.learn = NoStreaming
			}
		}
	case vanished:
		m.lacks = m.client
	}
	return r
}

// refusal returns the row for a request that was answered with 404, 410 or 429. A server that always answers streaming
// lists in this way may support plain lists. The answers of a server that has just begun to serve the type do not
// count.
func (m *memory) refusal(sent request, o outcome, r rule) rule {
	if sent != streamRequest || m.isStarting(sent, o) && m.failures < quickRetries {
		return r
	}
	if m.refused++; m.refused < maxIncompletes {
		return r
	}
	m.latest = m.latest || r.next == latestNext
	return rules[streamRefused]
}

// streamed records a complete streaming list.
func (m *memory) streamed() { m.errors, m.refused, m.fallbacks = 0, 0, 0 }

// listed records a complete list. It is also called during a request, when the initial events of a streaming list are
// complete.
func (m *memory) listed() {
	m.latest, m.plain, m.incompletes = false, false, 0
	m.early.reset()
}

// silence returns how long a watch can be silent before a bookmark has arrived in it, or zero if it can always be
// silent. After a silent watch, the next one is suspected too. If it is only idle, it must not cause a list every 90
// seconds, which is why the time is doubled.
func (m *memory) silence() time.Duration {
	if m.silences == 0 {
		return 0
	}
	return silenceLimit << min(m.silences-1, 3)
}

// polls reports whether the outcome completes a poll of a type that cannot be watched.
func (m *memory) polls(sent request, o outcome) bool { return o.kind == listed && m.lacks.Has(NoWatch) }

// request returns the request for the next one of a rule. It is sent after the delay or later.
func (m *memory) request(n next, sent request, now time.Time, delay time.Duration) step {
	again := n == sameNext && sent == watchRequest
	resumes := n == watchNext && (sent != watchRequest || !m.lacks.Has(NoVersions))
	switch {
	case n == sameNext && !again:
		return step{request: sent, delay: delay}
	case (again || resumes) && !m.lacks.Has(NoWatch):
		wait, due := m.early.wait(now)
		open := max(wait-delay, 0) // how long the watch could be open before the list
		if due && m.relists {
			return step{request: watchRequest, delay: delay, relists: true}
		}
		// After a failure, a watch that could be open for a few seconds only is not worth a request.
		if due && (open == 0 || again && open <= Tolerance) {
			return step{request: m.list(), delay: delay + open}
		}
		return step{request: watchRequest, delay: delay, timeout: open}
	case n == plainNext:
		m.plain = true
	case n == latestNext:
		m.latest = true
	}
	return step{request: m.list(), delay: delay}
}

func (m *memory) list() request {
	if m.plain || m.lacks.Has(NoStreaming) || m.lacks.Has(NoWatch) {
		return listRequest
	}
	return streamRequest
}

func (m *memory) delay(p pace, sent request, o outcome) time.Duration {
	starting := m.isStarting(sent, o)
	switch {
	case m.polls(sent, o):
		return lengthen(PollInterval, retryJitter*m.random())
	case p == atOnce, p == repeated && m.failures == 0:
		return 0
	case starting && m.failures < quickRetries:
		return quickDelay << m.failures
	}
	first, longest, failures := minDelay, longDelay, m.failures
	if starting {
		first = quickDelay
	}
	switch p {
	case upTo4s:
		longest, failures = soonDelay, m.soon
	case upTo10s:
		longest = briefDelay
	}
	if p == upTo10s || p == upTo30s {
		longest = min(longest, m.maxDelay)
	}
	backoff := time.Duration(math.Min(float64(first)*math.Pow(2, float64(failures)), float64(longest)))
	return max(
		lengthen(backoff, delayJitter*m.random()),
		lengthen(min(o.retryAfter, MaxRetryAfter), retryJitter*m.random()),
	)
}

// isStarting reports whether the request may have been rejected because the server has just begun to serve the type.
func (m *memory) isStarting(sent request, o outcome) bool {
	return o.kind == busy && sent != listRequest && !m.opened
}

func lengthen(d time.Duration, by float64) time.Duration { return d + time.Duration(float64(d)*by) }
