package typewatch

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

type answer int

func (a answer) RoundTrip(*http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	recorder.Header().Set("Retry-After", "1")
	recorder.WriteHeader(int(a))
	return recorder.Result(), nil
}

func TestRetryEarly(t *testing.T) {
	for _, test := range []struct {
		name   string
		url    string
		status answer
		kept   bool
	}{
		{"a refused watch may be tried early", "/apis/g/v1/widgets?watch=true", http.StatusTooManyRequests, false},
		{"a refused list may not", "/apis/g/v1/widgets", http.StatusTooManyRequests, true},
		{"a list whose version is too large may be tried early", "/apis/g/v1/widgets?resourceVersion=7", http.StatusGatewayTimeout, false},
		{"a watch whose version is too large, too", "/apis/g/v1/widgets?resourceVersion=7&watch=true", http.StatusGatewayTimeout, false},
		{"a list of any version that timed out may not", "/apis/g/v1/widgets?resourceVersion=0", http.StatusGatewayTimeout, true},
		{"nor one of the most recent version", "/apis/g/v1/widgets", http.StatusGatewayTimeout, true},
		{"nor a watch that failed otherwise", "/apis/g/v1/widgets?watch=true", http.StatusServiceUnavailable, true},
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
