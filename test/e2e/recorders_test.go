package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync/atomic"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/test/e2e/internal/history"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// attempts counts request attempts. Each attempt, including each retry, has a new number.
var attempts atomic.Int64

// recordLeaseRequests logs when a lease is read, when a write to a lease starts, and when it is confirmed. It ignores
// the leases of members and of the plan.
func (w *worker) recordLeaseRequests(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		switch {
		case !strings.Contains(r.URL.Path, "/leases"):
		case r.Method == http.MethodGet && w.isElected(path.Base(r.URL.Path)):
			answer, err := next.RoundTrip(r)
			if err == nil && answer.StatusCode == http.StatusOK {
				w.log.Add(history.Event{Kind: history.Read, Lease: path.Base(r.URL.Path)})
			}
			return answer, err
		case r.Method == http.MethodPost || r.Method == http.MethodPut:
			return w.recordLeaseWrite(next, r)
		}
		return next.RoundTrip(r)
	})
}

func (w *worker) recordLeaseWrite(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	name, holder, err := leaseIn(r)
	if err != nil {
		return nil, err
	}
	if !w.isElected(name) || holder == "" && r.Method == http.MethodPost { // The planner creates the leases of shards.
		return next.RoundTrip(r)
	}
	id := attempts.Add(1)
	kind := history.Renew
	if holder == "" {
		kind = history.Release
		if name != w.Lease && w.isTrap(trapRelease, name) {
			w.killItself()
		}
	}
	w.log.Add(history.Event{Kind: kind, Lease: name, ID: id, Holder: holder})
	answer, err := next.RoundTrip(r)
	if err == nil && answer.StatusCode < http.StatusMultipleChoices && kind == history.Renew {
		w.log.Add(history.Event{Kind: history.Renewed, Lease: name, ID: id})
	}
	return answer, err
}

// isElected reports whether a leader is elected with a lease.
func (w *worker) isElected(lease string) bool {
	return lease == w.Lease || strings.HasPrefix(lease, w.Lease+"-shard-")
}

// leaseIn returns the name of the lease in a request, and its holder.
func leaseIn(r *http.Request) (name, holder string, err error) {
	body, err := r.GetBody()
	if err != nil {
		return "", "", err
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return "", "", err
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		return "", "", fmt.Errorf("decode lease: %w", err)
	}
	lease, ok := object.(*coordinationv1.Lease)
	if !ok {
		return "", "", fmt.Errorf("got %T, want a lease", object)
	}
	return lease.Name, identityIn(ptr.Deref(lease.Spec.HolderIdentity, "")), nil
}

// identityIn returns the identity of the replica in the holder of a lease. The holder of a fleet's lease begins with
// the number of shards.
func identityIn(holder string) string {
	if layout, leader, ok := strings.Cut(holder, "/"); ok && strings.HasPrefix(layout, "shards=") {
		return leader
	}
	return holder
}

type attemptKey struct{}

// recordWrites returns a copy of a fenced config that logs each write before it reaches the fence, after it has passed
// the fence, and when it has finished.
func (w *worker) recordWrites(fenced *rest.Config) *rest.Config {
	before := func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet {
				return next.RoundTrip(r)
			}
			term, _ := replica.Term(r.Context())
			e := history.Event{
				Kind: history.Write, ID: attempts.Add(1), Lease: w.leaseOf(r.Context()), Term: term,
				Object: path.Base(strings.TrimSuffix(r.URL.Path, "/status")),
			}
			w.log.Add(e)
			answer, err := next.RoundTrip(r.WithContext(context.WithValue(r.Context(), attemptKey{}, e)))
			e.Kind = history.Wrote
			switch {
			case errors.Is(err, replica.ErrNotLeading):
				e.Error = "not leading"
			case err != nil:
				e.Error = err.Error()
			case answer.StatusCode >= http.StatusMultipleChoices:
				e.Error = answer.Status
			}
			w.log.Add(e)
			return answer, err
		})
	}
	after := func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if e, ok := r.Context().Value(attemptKey{}).(history.Event); ok {
				e.Kind = history.Sent
				w.log.Add(e)
				if e.Object != w.Member && w.isTrap(trapSend, e.Lease) {
					w.stopItself()
				}
			}
			return next.RoundTrip(r)
		})
	}
	// The first wrapper is the one closest to the network.
	fenced = rest.CopyConfig(fenced)
	fenced.WrapTransport = transport.Wrappers(after, fenced.WrapTransport, before)
	return fenced
}
