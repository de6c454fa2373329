package typewatch

import (
	"net/http"
	"net/url"
)

// RetryEarly removes the Retry-After header from two answers that the caller handles better than client-go's REST client, which
// repeats such requests on its own:
//
//   - A watch refused with 429. Just after its CRD was established, a type's first watch is refused until its storage is
//     ready, mostly some milliseconds, with the advice to retry after a second. Without the advice the refusal reaches the
//     reflector, whose backoff begins with milliseconds and ends with seconds.
//   - A list or watch refused with 504 that asks for a resourceVersion. The API server has waited three seconds for the version,
//     and has lost it if its etcd was restored. The REST client would repeat the request ten times before the reflector could
//     ask for the most recent version.
//
// All other answers are passed on unchanged.
func RetryEarly(next http.RoundTripper) http.RoundTripper { return retryEarly{next} }

type retryEarly struct{ next http.RoundTripper }

func (t retryEarly) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	if err == nil && handledByCaller(r.URL.Query(), response.StatusCode) {
		response.Header.Del("Retry-After")
	}
	return response, err
}

func handledByCaller(query url.Values, status int) bool {
	switch status {
	case http.StatusTooManyRequests:
		return query.Get("watch") != ""
	case http.StatusGatewayTimeout:
		version := query.Get("resourceVersion")
		return version != "" && version != "0"
	default:
		return false
	}
}

// WrappedRoundTripper lets client-go find the transport beneath.
func (t retryEarly) WrappedRoundTripper() http.RoundTripper { return t.next }
