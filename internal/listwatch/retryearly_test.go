package listwatch

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

type statusResponse int

func (s statusResponse) RoundTrip(*http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	recorder.Header().Set("Retry-After", "1")
	recorder.WriteHeader(int(s))
	return recorder.Result(), nil
}

func TestRetryEarly(t *testing.T) {
	for _, test := range []struct {
		name   string
		url    string
		status statusResponse
		kept   bool
	}{
		{"a refused watch is retried early", "/widgets?watch=true", http.StatusTooManyRequests, false},
		{"a refused list is not retried early", "/widgets", http.StatusTooManyRequests, true},
		{"a list of a version that is too large is retried early", "/widgets?resourceVersion=7",
			http.StatusGatewayTimeout, false},
		{"a watch of a version that is too large is retried early", "/widgets?resourceVersion=7&watch=true",
			http.StatusGatewayTimeout, false},
		{"a list of any version that timed out is not retried early", "/widgets?resourceVersion=0",
			http.StatusGatewayTimeout, true},
		{"a list of the most recent version that timed out is not retried early", "/widgets",
			http.StatusGatewayTimeout, true},
		{"a watch that failed otherwise is not retried early", "/widgets?watch=true", http.StatusServiceUnavailable, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			response, err := RetryEarly(test.status).RoundTrip(httptest.NewRequest(http.MethodGet, test.url, nil))
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if kept := response.Header.Get("Retry-After") != ""; kept != test.kept {
				t.Errorf("Retry-After kept: %v", kept)
			}
		})
	}
}
