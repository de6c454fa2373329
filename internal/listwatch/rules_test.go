package listwatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

var widgetsOf = map[string]schema.GroupVersionResource{
	"custom":   {Group: "example.com", Version: "v1", Resource: "widgets"},
	"built-in": {Group: "apps", Version: "v1", Resource: "widgets"},
}

// refusal returns an error like the one from a response with the status code.
func refusal(code int, retryAfter time.Duration) *apierrors.StatusError {
	err := apierrors.NewGenericServerResponse(code, http.MethodGet, widgetsOf["custom"].GroupResource(), "",
		fmt.Sprintf("reason %d", code), int(retryAfter/time.Second), false)
	err.ErrStatus.Message = fmt.Sprintf("reason %d", code)
	return err
}

func tooLargeError() error {
	err := apierrors.NewTimeoutError("Too large resource version", 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return err
}

// errorEvent returns an answer with an event of type ERROR, after the watch has been open for some time.
func errorEvent(code int, after time.Duration) answer {
	status := refusal(code, 0).ErrStatus
	if after == 0 {
		return answer{events: []watch.Event{{Type: watch.Error, Object: &status}}}
	}
	return answer{end: apierrors.FromObject(&status), after: after}
}

var refused = &url.Error{Op: "Get", URL: "https://server", Err: errors.New("connect: connection refused")}

// ruleCase is what a Loop must do with a scripted server.
type ruleCase struct {
	group   string // "custom" or "built-in", which is the default
	streams bool   // streaming lists are used
	answers []answer
	lists   *answer                       // the answer to all streaming lists
	forever *answer                       // the answer to all further watches and streaming lists
	do      map[time.Duration]func(*Loop) // what happens at a time
	want    []string                      // the first requests
	states  []string                      // "time phase", or "time phase message"
}

var healthy = answer{}

var ruleCases = map[string]ruleCase{
	"a list is followed by a watch": {
		want:   []string{"0s list 0", "0s watch 10", "5m0s watch 10"},
		states: []string{"1s Synced", "301s Synced"},
	},
	"a streaming list continues as a watch": {
		streams: true,
		want:    []string{"0s stream latest", "5m0s watch 10"},
		states:  []string{"1s Synced", "301s Synced"},
	},
	"a watch resumes from the last event": {
		answers: []answer{healthy, {events: []watch.Event{event(watch.Modified, "a", "12")}}},
		want:    []string{"0s list 0", "0s watch 10", "5m0s watch 12"},
	},
	"a watch without a version does not resume from its initial events": {
		answers: []answer{{version: "0"}, {
			events: []watch.Event{event(watch.Added, "a", "12"), event(watch.Added, "b", "3")},
			end:    io.EOF, after: time.Minute,
		}},
		want: []string{"0s list 0", "0s watch 0", "1m0s watch 0"},
	},
	"a bookmark does not move the version back": {
		answers: []answer{healthy, {events: []watch.Event{event(watch.Bookmark, "", "1"), event(watch.Bookmark, "", "")},
			end: io.EOF, after: time.Minute}},
		want: []string{"0s list 0", "0s watch 10", "1m0s watch 10"},
	},
	"a watch of a built-in type that is closed early is resumed": {
		answers: []answer{healthy, {end: io.EOF, after: 10 * time.Second}},
		want:    []string{"0s list 0", "0s watch 10", "10s watch 10"},
		states:  []string{"11s Synced"},
	},
	"a watch of a custom resource that is closed early is followed by a list": {
		group:   "custom",
		answers: []answer{healthy, {end: io.EOF, after: 10 * time.Second}},
		want:    []string{"0s list 0", "0s watch 10", "10s list 10", "10s watch 10"},
		states:  []string{"11s Synced"},
	},
	"a watch whose connection is lost is resumed": {
		answers: []answer{healthy, {end: io.ErrUnexpectedEOF, after: 10 * time.Second}},
		want:    []string{"0s list 0", "0s watch 10", "10s watch 10"},
		states:  []string{"11s Synced"},
	},
	"watches that end after one event": {
		forever: &answer{events: []watch.Event{event(watch.Modified, "a", "10")}, end: io.EOF},
		want: []string{"0s list 0", "0s watch 10", "10ms watch 10", "30ms watch 10", "70ms watch 10", "150ms watch 10",
			"310ms watch 10", "630ms watch 10", "1.27s watch 10", "2.55s watch 10", "5.11s watch 10", "9.11s watch 10"},
		states: []string{"4s Synced", "20s Synced"},
	},
	"watches that end after a few seconds": {
		forever: &answer{end: io.EOF, after: 2 * time.Second},
		want:    []string{"0s list 0", "0s watch 10", "2.01s watch 10", "4.03s watch 10", "6.07s watch 10"},
		states:  []string{"20s Synced", "5m Synced"},
	},
	"a watch whose events arrive only at its end is suspected": {
		answers: []answer{healthy, {bookmarks: 299 * time.Second, end: io.EOF, after: 5 * time.Minute}},
		forever: &answer{quiet: time.Hour},
		want:    []string{"0s list 0", "0s watch 10", "5m0s list 10", "5m0s watch 10", "6m30.01s list 10"},
		states:  []string{"389s Synced", "390.005s Failing the watch is open, but"},
	},
	"429 in a streaming list that continues as a watch": {
		streams: true,
		answers: []answer{errorEvent(429, 0)},
		want:    []string{"0s stream latest", "10ms watch 10"},
		states:  []string{"1s Synced"},
	},
	"403 in a streaming list that continues as a watch": {
		streams: true,
		answers: []answer{errorEvent(403, 0)},
		want:    []string{"0s stream latest", "10ms stream 10"},
		states:  []string{"5ms Forbidden reason 403", "4s Synced"},
	},
	"a streaming list that makes progress and is never finished": {
		streams: true,
		answers: []answer{{hangs: true, bookmarks: 10 * time.Second}},
		want:    []string{"0s stream latest", "5m0s list 0", "5m0s watch 10", "6m30.02s list 10"},
		forever: &answer{quiet: time.Hour},
		states:  []string{"299s Syncing", "301s Synced"},
	},
	"a suspected watch that ends without an event": {
		streams: true,
		answers: []answer{{hangs: true}, healthy, {quiet: time.Hour}, healthy, {quiet: time.Hour}, healthy,
			{quiet: time.Hour}},
		want: []string{"0s stream latest", "30s list 0", "30s watch 10", "2m0.02s list 10", "2m0.02s watch 10",
			"5m0.06s list 10", "5m0.06s watch 10", "10m30.06s list 10", "10m30.06s watch 10"},
	},
	"a streaming list whose connection is cut off": {
		streams: true,
		answers: []answer{{err: &url.Error{Op: "Get", URL: "https://server", Err: io.EOF}}},
		want:    []string{"0s stream latest", "10ms list 0", "10ms watch 10"},
	},
	"a streaming list whose connection is refused": {
		streams: true,
		answers: []answer{{err: &url.Error{Op: "Get", URL: "https://server", Err: syscall.ECONNREFUSED}}},
		want:    []string{"0s stream latest", "10ms stream latest", "5m0.01s watch 10"},
	},
	"watches that are closed at once": {
		forever: &answer{end: io.EOF},
		want: []string{"0s list 0", "0s watch 10", "10ms list 10", "10ms watch 10", "30ms list 10", "30ms watch 10",
			"70ms list 10"},
		states: []string{"4s Synced", "6s Failing " + ErrClosedAtOnce.Error()},
	},
	"a streaming list that is closed as soon as it is complete": {
		streams: true,
		answers: []answer{{endsAtOnce: true}},
		want:    []string{"0s stream latest", "10ms stream 10"},
		states:  []string{"1s Synced"},
	},
	"one watch that is closed at once": {
		answers: []answer{healthy, {end: io.EOF}},
		want:    []string{"0s list 0", "0s watch 10", "10ms list 10", "10ms watch 10"},
		states:  []string{"1s Synced", "5.005s Synced", "6s Synced"},
	},
	"a watch answered with 410": {
		answers: []answer{healthy, {err: refusal(http.StatusGone, 0)}},
		want:    []string{"0s list 0", "0s watch 10", "0s list 10", "0s watch 10"},
		states:  []string{"1s Synced"},
	},
	"a watch that receives a 410 event": {
		answers: []answer{healthy, errorEvent(http.StatusGone, 20*time.Second)},
		want:    []string{"0s list 0", "0s watch 10", "20s list 10", "20s watch 10"},
		states:  []string{"21s Synced"},
	},
	"watches that all receive a 410 event": {
		forever: ptrTo(errorEvent(http.StatusGone, 0)),
		want:    []string{"0s list 0", "0s watch 10", "0s list 10", "0s watch 10", "20ms list 10", "20ms watch 10"},
		states:  []string{"4s Synced", "6s Failing reason 410", "65s Failing reason 410"},
	},
	"watches that all receive a 500 event": {
		forever: ptrTo(errorEvent(http.StatusInternalServerError, 0)),
		want:    []string{"0s list 0", "0s watch 10", "10ms list 10", "10ms watch 10", "30ms list 10"},
		states:  []string{"1s Failing reason 500", "65s Failing reason 500"},
	},
	"one watch that receives a 500 event": {
		answers: []answer{healthy, errorEvent(http.StatusInternalServerError, 20*time.Second)},
		want:    []string{"0s list 0", "0s watch 10", "20.01s list 10", "20.01s watch 10"},
		states:  []string{"21s Failing reason 500", "26s Synced"},
	},
	"a list answered with 410": {
		answers: []answer{healthy, {err: refusal(http.StatusGone, 0)}, {err: refusal(http.StatusGone, 0)}},
		want:    []string{"0s list 0", "0s watch 10", "0s list 10", "20ms list latest", "20ms watch 10"},
	},
	"a version that is too large for a watch": {
		answers: []answer{healthy, {err: tooLargeError()}},
		want:    []string{"0s list 0", "0s watch 10", "0s list latest", "0s watch 10"},
		states:  []string{"1s Synced"},
	},
	"429 to a watch, for 10 minutes": {
		answers: []answer{healthy, {end: io.EOF, after: 10 * time.Second}, {err: refusal(429, 10*time.Minute)}},
		want:    []string{"0s list 0", "0s watch 10", "10s watch 10", "1m10s watch 10"},
		states:  []string{"14s Synced", "16s Failing reason 429", "71s Synced"},
	},
	"429 to the first watches of a new type": {
		answers: []answer{healthy, {err: refusal(429, time.Second)}, {err: refusal(429, time.Second)}},
		want:    []string{"0s list 0", "0s watch 10", "1ms watch 10", "3ms watch 10"},
		states:  []string{"1s Synced"},
	},
	"429 to a list": {
		answers: []answer{{err: refusal(429, 3*time.Second)}},
		want:    []string{"0s list 0", "3s list 0", "3s watch 10"},
		states:  []string{"2s Syncing", "4s Synced"},
	},
	"401 and 403": {
		answers: []answer{{err: refusal(401, 0)}, healthy, {err: refusal(403, 0)}},
		want:    []string{"0s list 0", "10ms list 0", "10ms watch 10", "30ms list 10", "30ms watch 10"},
		states:  []string{"0s Forbidden reason 401", "29ms Forbidden reason 403", "1s Synced"},
	},
	"403 to all watches": {
		forever: &answer{err: refusal(403, 0)},
		want:    []string{"0s list 0", "0s watch 10", "10ms list 10", "10ms watch 10", "30ms list 10"},
		states:  []string{"5ms Forbidden reason 403", "20m Forbidden reason 403"},
	},
	"404": {
		answers: []answer{{err: refusal(404, 0)}},
		want:    []string{"0s list 0", "10ms list 0", "10ms watch 10"},
		states:  []string{"5ms NotFound reason 404", "1s Synced"},
	},
	"503 to a watch, with Retry-After": {
		answers: []answer{healthy, {err: refusal(503, 90*time.Second)}},
		want:    []string{"0s list 0", "0s watch 10", "1m0s watch 10"},
		states:  []string{"1s Failing reason 503", "61s Synced"},
	},
	"503 to a streaming list": {
		streams: true,
		answers: []answer{{err: refusal(503, 0)}},
		want:    []string{"0s stream latest", "10ms list 0", "10ms watch 10"},
		states:  []string{"5ms Failing reason 503", "1s Synced"},
	},
	"500 to a streaming list": {
		streams: true,
		answers: []answer{{err: refusal(500, 0)}},
		want:    []string{"0s stream latest", "10ms list 0", "10ms watch 10"},
		states:  []string{"5ms Failing reason 500", "1s Synced"},
	},
	"404 to all streaming lists": {
		streams: true,
		lists:   &answer{err: refusal(404, 0)},
		do: map[time.Duration]func(*Loop){
			time.Minute: (*Loop).Relist, 2 * time.Minute: (*Loop).Relist, 3 * time.Minute: (*Loop).Relist,
		},
		want: []string{"0s stream latest", "10ms stream latest", "30ms stream latest", "70ms list 0", "70ms watch 10",
			"1m0s stream 10", "1m0.08s list 10", "1m0.08s watch 10", "2m0s list 10", "2m0s watch 10"},
		states: []string{"20ms NotFound reason 404", "1s Synced", "61s Synced"},
	},
	"410 to all streaming lists": {
		streams: true,
		lists:   &answer{err: refusal(410, 0)},
		want: []string{"0s stream latest", "0s stream latest", "20ms stream latest", "60ms list latest",
			"60ms watch 10"},
		states: []string{"1s Synced"},
	},
	"429 to all streaming lists": {
		streams: true,
		lists:   &answer{err: refusal(429, 2*time.Second)},
		want: []string{"0s stream latest", "1ms stream latest", "3ms stream latest", "7ms stream latest",
			"15ms stream latest", "31ms stream latest", "63ms stream latest", "127ms stream latest", "255ms stream latest",
			"2.255s stream latest", "4.255s stream latest", "6.255s list 0", "6.255s watch 10"},
		states: []string{"7s Synced"},
	},
	"two refused streaming lists of a type that is not served yet": {
		streams: true,
		answers: []answer{{err: refusal(404, 0)}, {err: refusal(404, 0)}},
		want:    []string{"0s stream latest", "10ms stream latest", "30ms stream latest", "5m0.03s watch 10"},
	},
	"422 to a streaming list, which is remembered": {
		streams: true,
		answers: []answer{{err: refusal(422, 0)}, healthy, errorEvent(http.StatusGone, time.Minute)},
		want:    []string{"0s stream latest", "0s list 0", "0s watch 10", "1m0s list 10", "1m0s watch 10"},
		states:  []string{"1s Synced"},
	},
	"403 to a streaming list, which is not remembered": {
		streams: true,
		answers: []answer{{err: refusal(403, 0)}, healthy, errorEvent(http.StatusGone, time.Minute)},
		want:    []string{"0s stream latest", "0s list 0", "0s watch 10", "1m0s stream 10"},
		states:  []string{"1s Synced"},
	},
	"405 to a watch": {
		streams: true,
		answers: []answer{{err: refusal(405, 0)}, {err: refusal(405, 0)}},
		want: []string{"0s stream latest", "0s stream latest", "0s list 0", "30s list 10", "1m0s list 10",
			"1m30s list 10"},
		states: []string{"1s Synced", "59s Synced", "10m Synced"},
	},
	"one 405 to a watch": {
		answers: []answer{healthy, {err: refusal(405, 0)}},
		want:    []string{"0s list 0", "0s watch 10", "0s list 10", "0s watch 10", "5m0s watch 10"},
		states:  []string{"1s Synced", "10m Synced"},
	},
	"a poll that hangs": {
		answers: []answer{healthy, {err: refusal(405, 0)}, healthy, {err: refusal(405, 0)}, healthy, {hangs: true}},
		want: []string{"0s list 0", "0s watch 10", "0s list 10", "0s watch 10", "0s list 10", "30s list 10",
			"2m30.01s list 10"},
		states: []string{"59s Synced", "61s Failing", "151s Synced"},
	},
	"406, which is remembered": {
		answers: []answer{{err: refusal(406, 0)}, {err: refusal(406, 0)}},
		want:    []string{"0s list 0", "0s list 0 as JSON", "20ms list 0 as JSON", "20ms watch 10 as JSON"},
	},
	"a watch without headers": {
		answers: []answer{healthy, {hangs: true}},
		want:    []string{"0s list 0", "0s watch 10", "30.01s list 10", "30.01s watch 10"},
		states:  []string{"4s Synced", "6s Failing the watch is not open", "30.005s Failing no response", "31s Synced"},
	},
	"a streaming list that is never finished, which is remembered": {
		streams: true,
		answers: []answer{{hangs: true, events: []watch.Event{event(watch.Added, "a", "5")}}, healthy,
			errorEvent(http.StatusGone, time.Minute)},
		want:   []string{"0s stream latest", "30s list 0", "30s watch 10", "1m30s list 10"},
		states: []string{"29s Syncing", "31s Synced"},
	},
	"a list without headers": {
		answers: []answer{{hangs: true}, healthy},
		want:    []string{"0s list 0", "2m0.01s list 0", "2m0.01s watch 10"},
		states:  []string{"119s Syncing", "120.005s Failing list: no response", "121s Synced"},
	},
	"streaming lists that end early": {
		streams: true,
		answers: []answer{{end: io.EOF}, {end: io.ErrUnexpectedEOF}, {end: io.EOF}, healthy, errorEvent(410, time.Minute)},
		want: []string{"0s stream latest", "10ms stream latest", "30ms stream latest", "70ms list 0", "70ms watch 10",
			"1m0.07s list 10"},
		states: []string{"1s Synced"},
	},
	"a watch that cannot be parsed": {
		answers: []answer{healthy, {end: fmt.Errorf("%w: <html>", ErrMalformed), after: time.Second}},
		want:    []string{"0s list 0", "0s watch 10", "1.01s list 10", "1.01s watch 10"},
		states:  []string{"3s Failing malformed response: <html>", "7s Synced"},
	},
	"an event that the store rejects": {
		streams: true,
		answers: []answer{{events: []watch.Event{event(watch.Deleted, rejectedName, "10")}}},
		want:    []string{"0s stream latest", "0s list 10", "0s watch 10"},
		states:  []string{"1s Synced"},
	},
	"events that the store always rejects": {
		forever: &answer{events: []watch.Event{event(watch.Deleted, rejectedName, "10")}},
		want:    []string{"0s list 0", "0s watch 10", "0s list 10", "0s watch 10", "20ms list 10", "20ms watch 10"},
		states:  []string{"4s Synced", "6s Failing " + errRejected.Error()},
	},
	"a streaming list that the store rejects": {
		streams: true,
		answers: []answer{{items: []watch.Event{event(watch.Added, rejectedName, "5")}}},
		want:    []string{"0s stream latest", "0s list 0", "0s watch 10"},
		states:  []string{"1s Synced"},
	},
	"a streaming list that cannot be parsed": {
		streams: true,
		answers: []answer{{end: ErrMalformed}},
		want:    []string{"0s stream latest", "10ms list 0", "10ms watch 10"},
		states:  []string{"5ms Failing malformed"},
	},
	"a watch in which bookmarks stop": {
		answers: []answer{healthy, {bookmarks: time.Minute, quiet: 150 * time.Second}},
		want:    []string{"0s list 0", "0s watch 10", "3m30s watch 10", "5m0.02s list 10", "5m0.02s watch 10"},
		forever: &answer{quiet: time.Hour},
		states: []string{"209s Synced", "211s Failing the watch is open, but", "216s Synced",
			"301s Failing the watch is open, but"},
	},
	"a watch in which bookmarks continue": {
		answers: []answer{healthy, {bookmarks: time.Minute}},
		want:    []string{"0s list 0", "0s watch 10"},
		states:  []string{"299s Synced"},
	},
	"a watch that does not end": {
		answers: []answer{healthy, {endless: true}},
		want:    []string{"0s list 0", "0s watch 10", "5m30s watch 10"},
		states:  []string{"329s Synced", "331s Synced"},
	},
	"no connection": {
		answers: []answer{healthy, {end: io.EOF, after: 10 * time.Second}, {err: refused}, {err: refused}},
		want:    []string{"0s list 0", "0s watch 10", "10s watch 10", "10.01s watch 10", "10.03s watch 10"},
		states:  []string{"10.02s Failing connection refused", "11s Synced"},
	},
	"a server that sends no versions": {
		answers: []answer{{version: "-"}, {end: io.EOF, after: time.Minute}},
		want:    []string{"0s list 0", "0s watch latest", "1m0s list 0", "1m0s watch 10"},
		states:  []string{"1s Synced", "61s Synced"},
	},
	"pages": {
		answers: []answer{{err: refusal(410, 0)}, {pages: "x"}, {err: refusal(410, 0)}},
		want:    []string{"0s list 0", "0s list latest", "0s list latest page x", "20ms list latest", "20ms watch 10"},
	},
	"the type vanishes": {
		answers: []answer{healthy, healthy, {err: refusal(404, 0)}, {err: refusal(404, 0)}},
		do:      map[time.Duration]func(*Loop){time.Second: (*Loop).Vanish},
		want:    []string{"0s list 0", "0s watch 10", "1s list 10", "1s list 10", "1.01s list 10"},
		states:  []string{"1s NotFound", "1.005s NotFound", "2s Synced"},
	},
	"a relist": {
		do:     map[time.Duration]func(*Loop){time.Second: (*Loop).Relist},
		want:   []string{"0s list 0", "0s watch 10", "1s list 10", "1s watch 10"},
		states: []string{"2s Synced"},
	},
	"a restore that another watch has noticed": {
		answers: []answer{healthy, healthy, {version: "3"}},
		do:      map[time.Duration]func(*Loop){time.Second: (*Loop).NewHistory},
		want:    []string{"0s list 0", "0s watch 10", "1s list latest", "1s watch 3"},
		states:  []string{"2s Synced"},
	},
	"a list that is older than requested": {
		answers: []answer{healthy, healthy, {version: "9"}, {version: "11"}},
		do:      map[time.Duration]func(*Loop){time.Second: (*Loop).Relist},
		want:    []string{"0s list 0", "0s watch 10", "1s list 10", "1s list latest", "1s watch 11"},
		states:  []string{"2s Synced"},
	},
	"a command during a delay": {
		answers: []answer{{err: refusal(500, time.Minute)}},
		do:      map[time.Duration]func(*Loop){time.Second: (*Loop).Wake},
		want:    []string{"0s list 0", "1s list 0", "1s watch 10"},
		states:  []string{"0s Failing reason 500", "2s Synced"},
	},
}

func ptrTo(a answer) *answer { return &a }

// run runs a Loop with the scripted server, and returns how the requests and states differ from those that are wanted.
func (c ruleCase) run(t *testing.T) (diff string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := &script{streams: c.streams, answers: c.answers, lists: c.lists, forever: c.forever, began: time.Now()}
		store := &things{}
		gvr := widgetsOf["built-in"]
		if c.group != "" {
			gvr = widgetsOf[c.group]
		}
		l := NewLoop(srv, store, Options{
			Log: logr.Discard(), GVR: gvr, Relists: NewRelistLimiter(), Random: func() float64 { return 0 },
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			l.Run(ctx)
		}()
		synctest.Wait()
		diff = c.check(l, srv)
		cancel()
		<-ended
		if phase := l.State().Phase; phase != Stopped || srv.open != 0 {
			diff += fmt.Sprintf("after Run: %s, %d open\n", phase, srv.open)
		}
	})
	return diff
}

func (c ruleCase) check(l *Loop, srv *script) (diff string) {
	began := srv.began
	last := 12 * time.Minute
	moments := map[time.Duration]func(){}
	for at, do := range c.do {
		moments[at] = func() { do(l) }
	}
	for _, state := range c.states {
		at, want, _ := strings.Cut(state, " ")
		phase, message, _ := strings.Cut(want, " ")
		d, err := time.ParseDuration(at)
		if err != nil {
			panic(err)
		}
		before := moments[d]
		moments[d] = func() {
			if before != nil {
				before()
			}
			synctest.Wait()
			if got := l.State(); string(got.Phase) != phase || !strings.Contains(got.Message, message) {
				diff += fmt.Sprintf("at %s: got %s %q, want %s %q\n", at, got.Phase, got.Message, phase, message)
			}
		}
		last = max(last, d)
	}
	times := make([]time.Duration, 0, len(moments))
	for at := range moments {
		times = append(times, at)
	}
	slices.Sort(times)
	for _, at := range append(times, last) {
		time.Sleep(time.Until(began.Add(at)))
		synctest.Wait()
		if do := moments[at]; do != nil {
			do()
			delete(moments, at)
		}
	}
	got := srv.sent()
	return diff + cmp.Diff(c.want, got[:min(len(got), len(c.want))])
}

func TestRules(t *testing.T) {
	for name, c := range ruleCases {
		t.Run(name, func(t *testing.T) {
			if diff := c.run(t); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Each row of the table is covered by at least one case, which fails if the row is replaced by another one.
func TestRules_EachRowMatters(t *testing.T) {
	for k := range kind(len(rules)) {
		t.Run(fmt.Sprint("row ", k), func(t *testing.T) {
			before := rules[k]
			defer func() { rules[k] = before }()
			rules[k] = rule{}
			if before == rules[k] {
				rules[k] = rules[failed]
			}
			for _, c := range ruleCases {
				if c.run(t) != "" {
					return
				}
			}
			t.Error("no case fails without the row")
		})
	}
}
