package typewatch

import "net/http"

// RetryEarly hides from client-go when a watch that was refused with 429 is to be tried again. Just after its CRD was
// established a type's first watch is refused until its storage is ready, mostly some milliseconds, with the advice to
// come back in a second, and client-go's REST client follows that on its own. Without the advice the refusal reaches
// the reflector, whose backoff begins with milliseconds and ends with seconds. Other requests are left alone.
func RetryEarly(next http.RoundTripper) http.RoundTripper { return retryEarly{next} }

type retryEarly struct{ next http.RoundTripper }

func (t retryEarly) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	if err == nil && response.StatusCode == http.StatusTooManyRequests && r.URL.Query().Get("watch") != "" {
		response.Header.Del("Retry-After")
	}
	return response, err
}

// WrappedRoundTripper lets client-go find the transport beneath.
func (t retryEarly) WrappedRoundTripper() http.RoundTripper { return t.next }
