package replica

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
	"github.com/dynamic-controller/engine/internal/writes"
)

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
				f.ledger = &writes.Ledger{}
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

// handovers records the versions that each run of shard 0 receives from the run before, or "lost" for a write without a
// response. A run writes when the test calls write, as a handler of the engine does.
type handovers struct {
	t        *testing.T
	delay    time.Duration // of responses
	conflict bool          // the API server rejects writes
	down     bool          // the connection is reset
	requests chan string   // the versions that the run of shard 0 must write
	sent     chan struct{} // receives when a request has been sent

	mu       sync.Mutex // guards received
	received [][]string
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
	wantNoError(h.t, r.Register("handovers", h.runnable(r.Replica), ScopeShard))
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
		h.received = append(h.received, versionsIn(writes.LedgerFrom(ctx).Recent()))
		h.mu.Unlock()
		for {
			select {
			case version := <-h.requests:
				if err := writeVersion(ctx, elsewhere, "another-cluster", "98"); err != nil {
					return err
				}
				if err := writeVersion(ctx, client, "api", version); err != nil {
					return err
				}
			case <-ctx.Done():
				if writeVersion(ctx, client, "api", "99") == nil {
					return errors.New("a write was sent although its context was cancelled before")
				}
				return nil
			}
		}
	})
}

// writeVersion writes to a server, and tells the next leader.
func writeVersion(ctx context.Context, client *http.Client, server, version string) error {
	made, ledger := &writes.Recorder{}, writes.LedgerFrom(ctx)
	defer func() {
		written, unknown := made.Take()
		if server == ledger.Server {
			ledger.Add(writes.Call{Object: "x/a", Writes: written, Unknown: unknown})
		}
	}()
	r, err := http.NewRequestWithContext(context.WithValue(ctx, writes.Key{}, made), http.MethodPut,
		"http://"+server+"/api/v1/namespaces/x/configmaps/a", http.NoBody)
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

func versionsIn(note writes.Note) (versions []string) {
	for _, call := range note {
		for _, write := range call.Writes {
			versions = append(versions, write.States[0].Version)
		}
		for range call.Unknown {
			versions = append(versions, "lost")
		}
	}
	return versions
}

// write makes the leader of shard 0 send a write.
func (h *handovers) write(version string) {
	h.requests <- version
	<-h.sent
}

func (h *handovers) all() [][]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.received)
}

// want waits until another run of shard 0 has begun, and checks what it has received.
func (h *handovers) want(runs *shardRuns, leader string, before int, want []string) {
	h.t.Helper()
	eventually(h.t, time.Minute, func() bool { return runs.of(0) == leader })
	synctest.Wait()
	if got := h.all(); len(got) != before+1 || !slices.Equal(got[before], want) {
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
		want           []string
		conflict, down bool // the result of the second write
	}{
		"the leader leaves":                 {stop: (*fleetRig).stop, want: []string{"41", "42"}},
		"the leader leaves while it writes": {delay: inFlight, stop: (*fleetRig).stop, want: []string{"41", "42"}},
		"a write fails after that":          {delay: inFlight, stop: (*fleetRig).stop, want: []string{"41"}, conflict: true},
		"the connection is reset after that": {
			delay: inFlight, stop: (*fleetRig).stop, want: []string{"41", "lost"}, down: true,
		},
		"a response takes longer than that": {delay: time.Minute, stop: (*fleetRig).stop, want: []string{"41", "lost"}},
		"the leader crashes":                {stop: func(r *fleetRig) error { r.crash(); return nil }},
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
				h.want(runs, second, before, test.want)
				s.edit(leasename.Shard(rigs[second].options.LeaseName, 0), func(lease *coordinationv1.Lease) {
					if note := lease.Annotations[writes.NoteAnnotation]; note != "" {
						t.Errorf("the Lease has the annotation %q while it is held", note)
					}
				})

				wantNoError(t, rigs[second].stop())
				third := h.start(s, runs, "c")
				h.want(runs, "c", before+1, test.want)
				wantNoError(t, third.stop())
			})
		})
	}
}

// The same holds with one Lease. A leader that crashes leaves no note: the rest of the Lease's time has passed.
func TestL6_NextLeaderReceivesTheLastWrites(t *testing.T) {
	for name, test := range map[string]struct {
		crashes bool
		want    []string
	}{
		"the leader leaves":  {want: []string{"42"}},
		"the leader crashes": {crashes: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, h := newFakeLeases(), newHandovers(t, 0)
				start := func(name string) *plainRig {
					r, _ := newPlain(t, s, name)
					wantNoError(t, r.Register("handovers", h.runnable(r.Replica), ScopeLeader))
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
				if got := h.all(); got[0] != nil || !slices.Equal(got[1], test.want) {
					t.Errorf("the runs received %v, want none and %v", got, test.want)
				}
				s.edit("test", func(lease *coordinationv1.Lease) {
					if note := lease.Annotations[writes.NoteAnnotation]; note != "" {
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
		f := &fence{ledger: &writes.Ledger{}}
		f.open(instant{}, Options{})
		transport := &fencedTransport{gate: f, records: true, next: roundTripperFunc(
			func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		recorded := context.WithValue(ctx, writes.Key{}, &writes.Recorder{})
		r, err := http.NewRequestWithContext(recorded, http.MethodPut, "http://api/api/v1/configmaps/a", http.NoBody)
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
	want := writes.Note{{Object: "x/a", Unknown: []writes.Target{{Name: "c"}}, Noted: true}}
	a.leases.ledger.Replace(want)
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
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, writes.NoteAnnotation, "invalid")
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
	return &noted{t, client, &notedLeases{LeasesGetter: client, identity: name, ledger: &writes.Ledger{}}}
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
func (n *noted) wantFound(ctx context.Context, want writes.Note) {
	n.t.Helper()
	_, err := n.leases.Leases("").Get(ctx, "l", metav1.GetOptions{})
	wantNoError(n.t, err)
	if got := n.leases.ledger.Recent(); !reflect.DeepEqual(got, want) {
		n.t.Errorf("%s remembers %v, want %v", n.leases.identity, got, want)
	}
}
