package replica

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
)

// serverFencedClient returns a client for the writes of a replica that the API server fences.
func (r *rig) serverFencedClient(cfg *rest.Config) *http.Client {
	cfg.Host, cfg.Transport = "http://api", r.transport
	client, err := rest.HTTPClientFor(r.FenceOnServer(cfg, "platform"))
	wantNoError(r.t, err)
	return client
}

func TestFenceOnServer_WritesCarryTheLeaseAndTheHolder(t *testing.T) {
	for name, test := range map[string]struct {
		impersonate rest.ImpersonationConfig
		user        string
	}{
		"itself": {user: "platform"},
		"a tenant": {
			impersonate: rest.ImpersonationConfig{UserName: "tenant", Extra: map[string][]string{
				serverfence.HolderExtra: {"forged"}, "other": {"kept"},
			}},
			user: "tenant",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, &fakeServer{}, "a").start()
				time.Sleep(time.Second)
				var got http.Header
				r.transport.body = func(r *http.Request) io.ReadCloser {
					got = r.Header
					return http.NoBody
				}
				client := r.serverFencedClient(&rest.Config{Impersonate: test.impersonate})
				header := http.Header{"Mine": {"x"}}
				wantNoError(t, send(t.Context(), client, http.MethodPost, header))
				lease := "Impersonate-Extra-Fence.dynamic-Controller.github.io%2flease"
				holder := "Impersonate-Extra-Fence.dynamic-Controller.github.io%2fholder"
				for key, want := range map[string]string{
					"Impersonate-User": test.user, lease: r.options.LeaseNamespace + "/" + r.options.LeaseName,
					holder: r.options.Identity, "Impersonate-Extra-Other": strings.Join(test.impersonate.Extra["other"], ""),
				} {
					if values := strings.Join(got.Values(key), ","); values != want {
						t.Errorf("header %s is %q, want %q", key, values, want)
					}
				}
				if len(header) != 1 {
					t.Errorf("the caller's header was changed: %v", header)
				}
				wantNoError(t, send(t.Context(), client, http.MethodGet, nil))
				if got.Get(lease) != "" || got.Get("Impersonate-User") != test.impersonate.UserName {
					t.Errorf("a read has the headers %v", got)
				}
				wantNoError(t, r.stop())
			})
		})
	}
}

// denials is a transport that answers the first requests with a body, and the others with success.
type denials struct {
	status   int
	body     string
	n        int // the number of requests to answer with the body
	requests []string
	bodies   []*closeRecorder
}

func (d *denials) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := ""
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		sent = string(b)
		_ = r.Body.Close()
	}
	d.requests = append(d.requests, sent)
	if len(d.requests) > d.n {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	}
	body := &closeRecorder{Reader: strings.NewReader(d.body)}
	d.bodies = append(d.bodies, body)
	return &http.Response{StatusCode: d.status, Body: body}, nil
}

const testDenial = `{"message":"ValidatingAdmissionPolicy 'x' denied request: ` + serverfence.Denied + `a/b"}`

func TestFenceOnServer_DenialsAreInterruptionsNearTheBeginningOfATerm(t *testing.T) {
	const long = 2 * maxDenial
	for name, test := range map[string]struct {
		after       time.Duration // after the beginning of the term
		status      int
		body        string
		interrupted bool
	}{
		"new term":                 {time.Second, http.StatusForbidden, testDenial, true},
		"later":                    {2 * testLeaseDuration, http.StatusForbidden, testDenial, false},
		"another reason":           {time.Second, http.StatusForbidden, `{"message":"RBAC"}`, false},
		"another status":           {time.Second, http.StatusConflict, testDenial, false},
		"a long body":              {time.Second, http.StatusForbidden, strings.Repeat("x", long) + testDenial, false},
		"a long body, found early": {time.Second, http.StatusForbidden, testDenial + strings.Repeat("x", long), true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, &fakeServer{}, "a").start()
				eventually(t, time.Minute, r.isLeading())
				time.Sleep(test.after)
				next := &denials{status: test.status, body: test.body, n: 100}
				response, err := r.sendThrough(next)
				wantRequests := 1
				if test.interrupted {
					wantErrorIs(t, err, ErrNotLeading)
					wantErrorContains(t, err, "write rejected")
					wantRequests = maxResends + 1
				} else {
					wantNoError(t, err)
					wantBody(t, response, test.body)
				}
				if len(next.requests) != wantRequests {
					t.Errorf("%d requests were sent, want %d", len(next.requests), wantRequests)
				}
				if slices.ContainsFunc(next.bodies, func(b *closeRecorder) bool { return !b.closed }) {
					t.Error("a body was not closed")
				}
				if n := len(r.leadership.fence.latest().inFlight); n != 0 {
					t.Errorf("%d writes are retained", n)
				}
				wantNoError(t, r.stop())
			})
		})
	}
}

func wantBody(t *testing.T, response *http.Response, want string) {
	t.Helper()
	if got, err := io.ReadAll(response.Body); string(got) != want || err != nil {
		t.Errorf("the body has %d of %d bytes, error %v", len(got), len(want), err)
	}
	wantNoError(t, response.Body.Close())
}

// sendThrough sends a write that the API server fences.
func (r *rig) sendThrough(next http.RoundTripper) (*http.Response, error) {
	client := &http.Client{Transport: &fencedTransport{
		gate: r.leadership.fence, next: next, server: &serverFence{username: "platform"},
	}}
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, "http://api/x", strings.NewReader("data"))
	wantNoError(r.t, err)
	return client.Do(request)
}

// An API server observes the new holder late.
func TestFenceOnServer_FirstWritesOfATermAreSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &fakeServer{}, "a").start()
		eventually(t, time.Minute, r.isLeading())
		next := &denials{status: http.StatusForbidden, body: testDenial, n: 3}
		response, err := r.sendThrough(next)
		wantNoError(t, err)
		wantNoError(t, response.Body.Close())
		if got := strings.Join(next.requests, ","); got != "data,data,data,data" || response.StatusCode != http.StatusOK {
			t.Errorf("got status %d after the requests %s", response.StatusCode, got)
		}
		wantNoError(t, r.stop())
	})
}

// The API server rejects a write after the term has ended.
func TestFenceOnServer_DenialAfterTheTermIsAnInterruption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		r := newRig(t, s, "a").start()
		eventually(t, time.Minute, r.isLeading())
		time.Sleep(2 * testLeaseDuration)
		term := r.leadership.fence.latest()
		s.setHolder("intruder")
		time.Sleep(2 * testRetryPeriod)
		next := &denials{status: http.StatusForbidden, body: testDenial, n: 100}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://api/x", nil)
		wantNoError(t, err)
		response, err := (&serverFence{}).send(t.Context(), next, request, term)
		if response != nil {
			_ = response.Body.Close()
		}
		wantErrorIs(t, err, errDenied)
		if len(next.requests) != 1 {
			t.Errorf("%d requests were sent, want 1", len(next.requests))
		}
		wantNoError(t, r.stop())
	})
}

func TestFenceOnServer_WritesOfAShardCarryItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFleetRig(t, newFakeLeases(), newShardRuns(), "a")
		fence := r.member.shards.newShard(3, 8).leadership.fence
		if want := r.options.LeaseNamespace + "/test-shard-3"; fence.lease != want || fence.holder != r.options.Identity {
			t.Errorf("got lease %q and holder %q", fence.lease, fence.holder)
		}
		if fence := r.leadership.fence; fence.lease != r.options.LeaseNamespace+"/test" {
			t.Errorf("got lease %q of the fleet", fence.lease)
		}
	})
}

func TestFenceOnServer_BrokenBodyIsReported(t *testing.T) {
	broken := io.NopCloser(io.MultiReader(strings.NewReader("start"), failingReader{errBroken}))
	response := &http.Response{StatusCode: http.StatusForbidden, Body: broken}
	if isDenial(response) {
		t.Error("a broken body is a denial")
	}
	got, err := io.ReadAll(response.Body)
	if string(got) != "start" || !errors.Is(err, errBroken) {
		t.Errorf("got %q and error %v", got, err)
	}
}

// closeRecorder is a body that records whether it was closed.
type closeRecorder struct {
	io.Reader
	closed bool
}

func (c *closeRecorder) Close() error {
	c.closed = true
	return nil
}
