package dynamiccontroller_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/internal/writes"
)

// Clients of a config of RecordWrites record what they have written for the call whose context they carry.
func TestRecordWrites(t *testing.T) {
	for name, test := range map[string]struct {
		method       string
		status       int // 0 if there is no response
		made, failed int // numbers of writes and of unknown ones
	}{
		"a write":                     {http.MethodPut, http.StatusOK, 1, 0},
		"a deletion":                  {http.MethodDelete, http.StatusOK, 1, 0},
		"a conflict":                  {http.MethodPut, http.StatusConflict, 0, 0},
		"a read":                      {http.MethodGet, http.StatusOK, 0, 0},
		"no response to a read":       {http.MethodGet, 0, 0, 0},
		"no response":                 {http.MethodPut, 0, 0, 1},
		"a timeout of the API server": {http.MethodPut, http.StatusGatewayTimeout, 0, 1},
	} {
		cfg := dynamiccontroller.RecordWrites(&rest.Config{Host: "http://api", Transport: respond{test.status}})
		client := must(rest.HTTPClientFor(cfg))
		for _, carried := range []*writes.Recorder{{}, nil} {
			ctx := context.WithValue(t.Context(), writes.Key{}, carried)
			r := must(http.NewRequestWithContext(ctx, test.method, "http://api/api/v1/namespaces/x/configmaps/a", http.NoBody))
			response, err := client.Do(r)
			if (err == nil) != (test.status > 0) {
				t.Errorf("%s: got error %v", name, err)
			}
			if err == nil {
				if text := must(io.ReadAll(response.Body)); string(text) != respondedObject {
					t.Errorf("%s: read %s", name, text)
				}
				_ = response.Body.Close()
			}
			if carried == nil {
				continue
			}
			if made, unknown := carried.Take(); len(made) != test.made || len(unknown) != test.failed {
				t.Errorf("%s: recorded %+v, unknown %+v", name, made, unknown)
			}
		}
	}
}

const respondedObject = `{"metadata":{"name":"a","uid":"u","resourceVersion":"7"}}`

// respond is an API server that returns an object with a status, or fails if it is zero.
type respond struct{ status int }

func (r respond) RoundTrip(*http.Request) (*http.Response, error) {
	if r.status == 0 {
		return nil, errLost
	}
	return &http.Response{
		StatusCode: r.status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(respondedObject)),
	}, nil
}
