package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
	"github.com/dynamic-controller/engine/internal/lastwrites"
	"github.com/dynamic-controller/engine/internal/writes"
)

func TestLastWrites_RecordTheVersionsInResponses(t *testing.T) {
	encoded, err := runtime.Encode(protobuf.NewSerializer(nil, nil), &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", ResourceVersion: "12", Labels: map[string]string{"b": "c"}},
		Data:       map[string]string{"key": "value"},
	})
	wantNoError(t, err)
	const object, json = `{"kind":"X","metadata":{"name":"a","resourceVersion":"12"}}`, runtime.ContentTypeJSON
	configMaps, widgets := schema.GroupResource{Resource: "configmaps"}, schema.ParseGroupResource("widgets.a.b")
	for name, test := range map[string]struct {
		method                  string // empty for PUT
		path, contentType, body string
		status                  int // 0 for 200
		encoding                string
		want                    lastwrites.Versions
	}{
		"an object": {path: "/api/v1/namespaces/x/configmaps/a", body: object, want: lastwrites.Versions{configMaps: 12}},
		"a status": {
			path: "/apis/a.b/v1/namespaces/x/widgets/a/status", body: object, want: lastwrites.Versions{widgets: 12},
		},
		"cluster-scoped": {path: "/apis/a.b/v1/widgets/a", body: object, want: lastwrites.Versions{widgets: 12}},
		"through a proxy": {
			path: "/k8s/clusters/c/apis/a.b/v1/widgets/a", body: object, want: lastwrites.Versions{widgets: 12},
		},
		"an object named status": {
			path: "/apis/a.b/v1/namespaces/x/status/a", body: object,
			want: lastwrites.Versions{schema.ParseGroupResource("status.a.b"): 12},
		},
		"a namespace": {path: "/api/v1/namespaces/x", body: object, want: lastwrites.Versions{{Resource: "namespaces"}: 12}},
		"the status of a namespace": {
			path: "/api/v1/namespaces/x/status", body: object, want: lastwrites.Versions{{Resource: "namespaces"}: 12},
		},
		"protobuf": {
			path: "/api/v1/namespaces/x/configmaps", contentType: runtime.ContentTypeProtobuf, body: string(encoded),
			status: http.StatusCreated, want: lastwrites.Versions{configMaps: 12},
		},
		"broken protobuf": {path: "/api/v1/configmaps", contentType: runtime.ContentTypeProtobuf, body: "k8s\x00\xff"},
		"a deletion":      {method: http.MethodDelete, path: "/api/v1/namespaces/x/configmaps/a", body: object},
		"a review":        {path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: `{"metadata":{}}`},
		"an error":        {path: "/api/v1/namespaces/x/configmaps/a", body: object, status: http.StatusConflict},
		"compressed":      {path: "/api/v1/namespaces/x/configmaps/a", body: object, encoding: "br"},
		"no number":       {path: "/api/v1/namespaces/x/configmaps/a", body: `{"metadata":{"resourceVersion":"x"}}`},
		"a Pod's answer":  {path: "/api/v1/namespaces/x/pods/a/proxy/api", body: object},
		"another path":    {path: "/healthz", body: object},
		"long JSON": {
			path: "/api/v1/configmaps/a", body: strings.Repeat(" ", 4<<20) + object,
			want: lastwrites.Versions{configMaps: 12},
		},
		"too long": {
			path: "/api/v1/configmaps/a", contentType: runtime.ContentTypeProtobuf,
			body: string(encoded) + strings.Repeat(" ", 4<<20),
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.contentType == "" {
				test.contentType = json + "; charset=utf-8"
			}
			if test.status == 0 {
				test.status = http.StatusOK
			}
			r, err := http.NewRequest(cmp.Or(test.method, http.MethodPut), "http://api"+test.path, http.NoBody)
			wantNoError(t, err)
			header := http.Header{"Content-Type": {test.contentType}, "Content-Encoding": {test.encoding}}
			w := &lastWrites{}
			f := &fence{lastWrites: w}
			f.open(instant{}, Options{})
			response, err := (&fencedTransport{gate: f, records: true, next: roundTripperFunc(
				func(*http.Request) (*http.Response, error) {
					body := io.NopCloser(strings.NewReader(test.body))
					return &http.Response{StatusCode: test.status, Header: header, Body: body}, nil
				})}).RoundTrip(r)
			wantNoError(t, err)
			read, err := io.ReadAll(response.Body)
			wantNoError(t, err)
			if string(read) != test.body {
				t.Errorf("read %q, want %q", read, test.body)
			}
			wantNoError(t, response.Body.Close())
			if got := w.recent(); !maps.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// A fenced write is recorded for the call whose context it carries, also in clusters that do not contain the Lease, and
// if there is no election.
func TestD12_FencedWritesAreRecordedForTheirCall(t *testing.T) {
	const object = `{"metadata":{"name":"a","namespace":"x","uid":"u","resourceVersion":"12"}}`
	for name, test := range map[string]struct {
		method, path string
		status       int
		home         bool // the cluster contains the Lease
		want         int
		unknown      int // outcomes
	}{
		"a write":                       {http.MethodPut, "configmaps/a", http.StatusOK, true, 1, 0},
		"a deletion":                    {http.MethodDelete, "configmaps/a", http.StatusOK, true, 1, 0},
		"a write to another cluster":    {http.MethodPut, "configmaps/a", http.StatusOK, false, 1, 0},
		"a deletion in another cluster": {http.MethodDelete, "configmaps/a", http.StatusOK, false, 1, 0},
		"a conflict":                    {http.MethodPut, "configmaps/a", http.StatusConflict, true, 0, 0},
		"a read":                        {http.MethodGet, "configmaps/a", http.StatusOK, true, 0, 0},
		"a timeout of the API server":   {http.MethodPut, "configmaps/a", http.StatusGatewayTimeout, true, 0, 1},
		"no response":                   {http.MethodPut, "configmaps/a", 0, true, 0, 1},
	} {
		for _, elects := range []bool{true, false} {
			f := &fence{}
			if elects {
				f.lastWrites = &lastWrites{}
			}
			f.open(instant{}, Options{})
			made := &writes.Recorder{}
			ctx := context.WithValue(t.Context(), writes.Key{}, made)
			r, err := http.NewRequestWithContext(ctx, test.method, "http://api/api/v1/namespaces/x/"+test.path, http.NoBody)
			wantNoError(t, err)
			response, err := (&fencedTransport{gate: f, records: test.home, next: roundTripperFunc(
				func(*http.Request) (*http.Response, error) {
					if test.status == 0 {
						return nil, errors.New("the connection is lost")
					}
					return &http.Response{
						StatusCode: test.status, Header: http.Header{"Content-Type": {runtime.ContentTypeJSON}},
						Body: io.NopCloser(strings.NewReader(object)),
					}, nil
				})}).RoundTrip(r)
			if test.status > 0 {
				wantNoError(t, err)
				_, err = io.ReadAll(response.Body)
				wantNoError(t, err)
				wantNoError(t, response.Body.Close())
			}
			if got, unknown := made.Take(); len(got) != test.want || len(unknown) != test.unknown {
				t.Errorf("%s, election %t: got the writes %+v, and unknown ones %+v, want %d and %d", name, elects, got,
					unknown, test.want, test.unknown)
			}
		}
	}
}

func TestLastWrites_RememberTheNewestVersionForSomeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &lastWrites{}
		a, b := schema.GroupResource{Resource: "a"}, schema.GroupResource{Resource: "b"}
		w.add(a, "7")
		time.Sleep(recentFor - time.Second)
		w.add(b, "9")
		w.add(b, "8")
		if got, want := w.recent(), (lastwrites.Versions{a: 7, b: 9}); !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		time.Sleep(time.Second)
		if got, want := w.recent(), (lastwrites.Versions{b: 9}); !maps.Equal(got, want) {
			t.Errorf("later, got %v, want %v", got, want)
		}
	})
}

// handovers records the last writes that each run of shard 0 receives. A run writes when the test calls write.
type handovers struct {
	t        *testing.T
	delay    time.Duration // of responses
	conflict bool          // the API server rejects writes
	down     bool          // the connection is reset
	requests chan string   // the versions that the run of shard 0 must write
	sent     chan struct{} // receives when a request has been sent

	mu       sync.Mutex // guards received
	received []lastwrites.Versions
}

func newHandovers(t *testing.T, delay time.Duration) *handovers {
	return &handovers{t: t, delay: delay, requests: make(chan string), sent: make(chan struct{}, 1)}
}

// respond returns the version in the header of the request after the delay.
func (h *handovers) respond(r *http.Request) (*http.Response, error) {
	if r.Context().Err() != nil {
		return nil, context.Cause(r.Context())
	}
	h.sent <- struct{}{}
	select {
	case <-time.After(h.delay):
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
	switch {
	case h.down:
		return nil, errDown
	case h.conflict:
		return &http.Response{StatusCode: http.StatusConflict, Request: r, Body: http.NoBody}, nil
	}
	return respondVersion(r)
}

func respondVersion(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {runtime.ContentTypeJSON}}, Request: r,
		Body: io.NopCloser(strings.NewReader(`{"metadata":{"resourceVersion":"` + r.Header.Get("Version") + `"}}`)),
	}, nil
}

func (h *handovers) start(s *fakeLeases, runs *shardRuns, name string) *fleetRig {
	r := newFleetRig(h.t, s, runs, name)
	wantNoError(h.t, r.RegisterForShards("handovers", h.runnable(r.Replica)))
	return r.start()
}

// runnable returns a runnable of the replica, which writes with its fenced configs.
func (h *handovers) runnable(r *Replica) Runnable {
	h.t.Helper()
	client, err := rest.HTTPClientFor(r.Fence(&rest.Config{Host: r.cfg.Host, Transport: roundTripperFunc(h.respond)}))
	wantNoError(h.t, err)
	elsewhere, err := rest.HTTPClientFor(r.Fence(
		&rest.Config{Host: "http://another-cluster", Transport: roundTripperFunc(respondVersion)}))
	wantNoError(h.t, err)
	return RunFunc(func(ctx context.Context) error {
		if index, _ := Shard(ctx); index != 0 {
			<-ctx.Done()
			return nil
		}
		h.mu.Lock()
		h.received = append(h.received, lastwrites.From(ctx))
		h.mu.Unlock()
		for {
			select {
			case version := <-h.requests:
				if err := writeVersion(ctx, elsewhere, "98"); err != nil {
					return err
				}
				if err := writeVersion(ctx, client, version); err != nil {
					return err
				}
			case <-ctx.Done():
				if writeVersion(ctx, client, "99") == nil {
					return errors.New("a write was sent although its context was cancelled before")
				}
				return nil
			}
		}
	})
}

func writeVersion(ctx context.Context, client *http.Client, version string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://api/api/v1/configmaps", http.NoBody)
	if err != nil {
		return err
	}
	r.Header.Set("Version", version)
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	_, readErr := io.ReadAll(response.Body)
	return errors.Join(err, readErr, response.Body.Close())
}

// write makes the leader of shard 0 send a write.
func (h *handovers) write(version string) {
	h.requests <- version
	<-h.sent
}

func (h *handovers) all() []lastwrites.Versions {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.received)
}

// want waits until another run of shard 0 has begun, and checks what it has received.
func (h *handovers) want(runs *shardRuns, leader string, before int, want lastwrites.Versions) {
	h.t.Helper()
	eventually(h.t, time.Minute, func() bool { return runs.of(0) == leader })
	synctest.Wait()
	if got := h.all(); len(got) != before+1 || !maps.Equal(got[before], want) {
		h.t.Errorf("the runs received %v, want %s to receive %v", got, leader, want)
	}
}

// The next leader of a shard receives the last writes, and so does the one after it. The Lease contains them only while
// nobody holds it.
func TestFleet_NextLeaderReceivesTheLastWrites(t *testing.T) {
	const inFlight = 100 * time.Millisecond
	for name, test := range map[string]struct {
		delay          time.Duration // of the response to the second write
		stop           func(*fleetRig) error
		want           uint64
		conflict, down bool // the result of the second write
	}{
		"the leader leaves":                  {stop: (*fleetRig).stop, want: 42},
		"the leader leaves while it writes":  {delay: inFlight, stop: (*fleetRig).stop, want: 42},
		"a write fails after that":           {delay: inFlight, stop: (*fleetRig).stop, want: 41, conflict: true},
		"the connection is reset after that": {delay: inFlight, stop: (*fleetRig).stop, want: 41, down: true},
		"a response takes longer than that":  {delay: time.Minute, stop: (*fleetRig).stop, want: 41},
		"the leader crashes":                 {stop: func(r *fleetRig) error { r.crash(); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, runs, h := newFakeLeases(), newShardRuns(), newHandovers(t, 0)
				rigs := map[string]*fleetRig{"a": h.start(s, runs, "a")}
				eventually(t, time.Minute, func() bool { return runs.of(0) == "a" })
				rigs["b"] = h.start(s, runs, "b")
				eventually(t, time.Minute, isBalanced(runs, 8, "a", "b"))
				first, second := "a", "b"
				if runs.of(0) == "b" {
					first, second = "b", "a"
				}
				synctest.Wait()
				before := len(h.all())
				h.write("41")
				synctest.Wait()
				h.delay, h.conflict, h.down = test.delay, test.conflict, test.down
				h.write("42")
				wantNoError(t, test.stop(rigs[first]))
				var want lastwrites.Versions
				if test.want > 0 {
					want = lastwrites.Versions{{Resource: "configmaps"}: test.want}
				}
				h.want(runs, second, before, want)
				s.edit(fleet.ShardLease(rigs[second].options.LeaseName, 0), func(lease *coordinationv1.Lease) {
					if note := lease.Annotations[lastWritesAnnotation]; note != "" {
						t.Errorf("the Lease has the annotation %q while it is held", note)
					}
				})

				wantNoError(t, rigs[second].stop())
				third := h.start(s, runs, "c")
				h.want(runs, "c", before+1, want)
				wantNoError(t, third.stop())
			})
		})
	}
}

// The same holds with one Lease. A leader that crashes leaves no note: the rest of the Lease's time has passed.
func TestL6_NextLeaderReceivesTheLastWrites(t *testing.T) {
	for name, test := range map[string]struct {
		crashes bool
		want    lastwrites.Versions
	}{
		"the leader leaves":  {want: lastwrites.Versions{{Resource: "configmaps"}: 42}},
		"the leader crashes": {crashes: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, h := newFakeLeases(), newHandovers(t, 0)
				start := func(name string) *plainRig {
					r, _ := newPlain(t, s, name)
					wantNoError(t, r.Register("handovers", h.runnable(r.Replica)))
					r.start()
					return r
				}
				first := start("a")
				eventually(t, time.Minute, func() bool { return len(h.all()) == 1 })
				second := start("b")
				h.write("42")
				synctest.Wait()
				first.client.down.Store(test.crashes)
				_ = first.stop()
				eventually(t, time.Minute, func() bool { return len(h.all()) == 2 })
				if got := h.all(); got[0] != nil || !maps.Equal(got[1], test.want) {
					t.Errorf("the runs received %v, want none and %v", got, test.want)
				}
				s.edit("test", func(lease *coordinationv1.Lease) {
					if note := lease.Annotations[lastWritesAnnotation]; note != "" {
						t.Errorf("the Lease has the annotation %q while it is held", note)
					}
				})
				wantNoError(t, second.stop())
			})
		})
	}
}

// A write that can be given time to complete is still cancelled at its own deadline. An HTTP/2 transport then returns
// the error of the context that it has received.
func TestLastWrites_DeadlineOfAWriteIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fence{lastWrites: &lastWrites{}}
		f.open(instant{}, Options{})
		transport := &fencedTransport{gate: f, records: true, next: roundTripperFunc(
			func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://api/api/v1/configmaps/a", http.NoBody)
		wantNoError(t, err)
		began := time.Now()
		_, err = (&http.Client{Transport: transport}).Do(r) //nolint:bodyclose // there is no response
		wantErrorIs(t, err, context.DeadlineExceeded)
		if timeout := (*url.Error)(nil); !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("%v is no timeout", err)
		}
		if waited := time.Since(began); waited != time.Second {
			t.Errorf("the write was cancelled after %v, want a second", waited)
		}
	})
}

// A replica remembers the last writes in a Lease until another replica has held the Lease.
func TestNotedLeases_RememberTheLastWrites(t *testing.T) {
	ctx, server := t.Context(), newFakeLeases()
	server.setLocked(nil, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l"}})
	a, b := newNoted(t, server, "a"), newNoted(t, server, "b")
	for i := range 2000 { // too many for an annotation
		a.leases.writes.add(schema.GroupResource{Group: "example.com", Resource: fmt.Sprintf("widgets%d", i)}, "7")
	}
	wantNoError(t, a.hold(ctx, ""))
	b.wantFound(ctx, nil)
	want := lastwrites.Versions{{Resource: "configmaps"}: 41}
	a.leases.writes.replace(want)
	wantNoError(t, a.hold(ctx, ""))
	b.wantFound(ctx, want)

	b.client.after.Store(true) // the response to the next request is lost
	if err := b.hold(ctx, "b"); err == nil {
		t.Error("the response was not lost")
	}
	b.client.after.Store(false)
	b.wantFound(ctx, want) // the Lease names b
	a.wantFound(ctx, nil)
	server.edit("l", func(lease *coordinationv1.Lease) {
		lease.Spec.HolderIdentity = nil
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, lastWritesAnnotation, "invalid")
	})
	b.wantFound(ctx, nil)
}

// noted is a replica's client for the Lease of a shard.
type noted struct {
	t      *testing.T
	client *fakeLeaseClient
	leases *notedLeases
}

func newNoted(t *testing.T, server *fakeLeases, name string) *noted {
	client := &fakeLeaseClient{server: server}
	return &noted{t, client, &notedLeases{LeasesGetter: client, identity: name, writes: &lastWrites{}}}
}

// hold changes the holder of the Lease.
func (n *noted) hold(ctx context.Context, holder string) error {
	lease, err := n.client.Get(ctx, "l", metav1.GetOptions{})
	if err != nil {
		return err
	}
	lease.Spec.HolderIdentity = &holder
	_, err = n.leases.Leases("").Update(ctx, lease, metav1.UpdateOptions{})
	return err
}

// wantFound reads the Lease and checks the last writes.
func (n *noted) wantFound(ctx context.Context, want lastwrites.Versions) {
	n.t.Helper()
	_, err := n.leases.Leases("").Get(ctx, "l", metav1.GetOptions{})
	wantNoError(n.t, err)
	if got := n.leases.writes.recent(); !maps.Equal(got, want) {
		n.t.Errorf("%s remembers %v, want %v", n.leases.identity, got, want)
	}
}
