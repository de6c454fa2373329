package listwatch

import (
	"net/http"
	"net/url"
)

// RetryEarly removes the Retry-After header from the responses to two kinds of requests. With the header, client-go's
// REST client would retry the requests itself, although the caller can handle the responses better. The requests are:
//
//   - A watch rejected with 429. The API server rejects the first watch of a new CRD's type until the type's storage is
//     ready. This usually takes a few milliseconds, but the response asks the client to retry after a second. Without
//     the header, the error reaches [ListWatch] and then the reflector, whose delays start at less than a millisecond
//     and grow to seconds.
//   - A list or watch for a resourceVersion that is rejected with 504. The API server has waited three seconds for
//     the version, which may have been lost when etcd was restored. The REST client would repeat the request ten
//     times before the reflector could ask for the most recent version.
//
// All other responses are passed on unchanged.
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

// WrappedRoundTripper returns the underlying transport, as client-go expects of wrappers.
func (t retryEarly) WrappedRoundTripper() http.RoundTripper { return t.next }
