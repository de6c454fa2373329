package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
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

// recordLeaseRequests logs when a write to the lease starts, when it is confirmed, and when the process first observes
// a lease.
func (w *worker) recordLeaseRequests(next http.RoundTripper) http.RoundTripper {
	recordSeen := sync.OnceFunc(func() { w.log.Add(history.Event{Kind: history.Seen}) })
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if !strings.Contains(r.URL.Path, "/leases") {
			return next.RoundTrip(r)
		}
		if r.Method == http.MethodGet {
			answer, err := next.RoundTrip(r)
			if err == nil && answer.StatusCode == http.StatusOK {
				recordSeen()
			}
			return answer, err
		}
		holder, err := holderOf(r)
		if err != nil {
			return nil, err
		}
		id := attempts.Add(1)
		kind := history.Renew
		if holder == "" {
			kind = history.Release
		}
		w.log.Add(history.Event{Kind: kind, ID: id, Holder: holder})
		answer, err := next.RoundTrip(r)
		if err == nil && answer.StatusCode < http.StatusMultipleChoices && kind == history.Renew {
			w.log.Add(history.Event{Kind: history.Renewed, ID: id})
			recordSeen()
		}
		return answer, err
	})
}

func holderOf(r *http.Request) (string, error) {
	body, err := r.GetBody()
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return "", err
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		return "", fmt.Errorf("decode lease: %w", err)
	}
	lease, ok := object.(*coordinationv1.Lease)
	if !ok {
		return "", fmt.Errorf("got %T, want a lease", object)
	}
	return ptr.Deref(lease.Spec.HolderIdentity, ""), nil
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
				Kind: history.Write, ID: attempts.Add(1), Term: term,
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
			}
			return next.RoundTrip(r)
		})
	}
	// The first wrapper is the one closest to the network.
	fenced = rest.CopyConfig(fenced)
	fenced.WrapTransport = transport.Wrappers(after, fenced.WrapTransport, before)
	return fenced
}
