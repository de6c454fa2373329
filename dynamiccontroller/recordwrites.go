package dynamiccontroller

import (
	"net/http"

	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/internal/writes"
)

// RecordWrites returns a copy of cfg for the clients with which handlers write, in programs without package replica,
// whose fenced configs do the same. Between two calls of a handler for the same object, the caches that its type reads
// then contain the writes of the first call; see [Config].MaxWriteLag. A write belongs to the call whose context, or a
// context derived from it, it was sent with. If [NewForConfig] has created the controller, writes to another host than
// that of its config are not waited for.
func RecordWrites(cfg *rest.Config) *rest.Config {
	recorded := rest.CopyConfig(cfg)
	recorded.Wrap(func(next http.RoundTripper) http.RoundTripper { return writeRecorder{next} })
	return recorded
}

type writeRecorder struct{ next http.RoundTripper }

// WrappedRoundTripper returns the wrapped transport, for client-go.
func (t writeRecorder) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t writeRecorder) RoundTrip(r *http.Request) (*http.Response, error) {
	record := writes.ResultOf(r)
	response, err := t.next.RoundTrip(r)
	record(response, err)
	return response, err
}
