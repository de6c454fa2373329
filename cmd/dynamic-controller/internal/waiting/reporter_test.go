package waiting

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// get sends a request that takes the given time.
func get(t *testing.T, r *Reporter, url string, takes time.Duration) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Error(err)
		return
	}
	failure := errors.New("failed")
	_, err = r.Wrap(roundTripper(func(*http.Request) (*http.Response, error) {
		time.Sleep(takes)
		return nil, failure
	})).RoundTrip(request)
	if !errors.Is(err, failure) {
		t.Errorf("got the error %v", err)
	}
}

func TestReporter(t *testing.T) {
	const line = "waiting for https://server: GET /slow "
	for name, c := range map[string]struct {
		takes time.Duration
		want  string
	}{
		"a fast request is not reported":                  {999 * time.Millisecond, ""},
		"a request is reported after a second":            {1500 * time.Millisecond, line + "(1s)\n"},
		"a request is reported again every five seconds":  {7 * time.Second, line + "(1s)\n" + line + "(6s)\n"},
		"nothing is reported while no request is pending": {0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out := &strings.Builder{}
				r := Start(out)
				get(t, r, "https://server/slow?token=secret", c.takes)
				r.Stop()
				if out.String() != c.want {
					t.Errorf("got %q, want %q", out, c.want)
				}
			})
		})
	}
}

func TestReporter_ReportsTheOldestRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &strings.Builder{}
		r := Start(out)
		get(t, r, "https://server/first", 500*time.Millisecond)
		go get(t, r, "https://server/second", 2*time.Second)
		synctest.Wait()
		get(t, r, "https://server/third", 2*time.Second)
		synctest.Wait()
		r.Stop()
		if want := "waiting for https://server: GET /second (1s)\n"; out.String() != want {
			t.Errorf("got %q, want %q", out, want)
		}
	})
}
