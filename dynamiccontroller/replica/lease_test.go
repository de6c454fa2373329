package replica

import (
	"context"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func TestAReadThatGotAConnectionThatWasJustCutIsSentAgainAtOnce(t *testing.T) {
	closed := &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed}
	for name, c := range map[string]struct {
		method string
		err    error
		again  bool
	}{
		"a read":           {http.MethodGet, closed, true},
		"a write":          {http.MethodPut, closed, false},
		"another mischief": {http.MethodGet, errBroken, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				request, err := http.NewRequestWithContext(ctx, c.method, "http://api/lease", http.NoBody)
				wantNoError(t, err)
				tries := 0
				_, err = afterACut{tripper(func(r *http.Request) (*http.Response, error) {
					if tries++; tries < 3 {
						return nil, c.err
					}
					return &http.Response{Body: http.NoBody}, nil
				})}.RoundTrip(request)
				if c.again != (err == nil) || c.again != (tries == 3) {
					t.Errorf("%d tries, error %v", tries, err)
				}
				tries = -1000 // it does not get better
				began := time.Now()
				_, err = afterACut{tripper(func(r *http.Request) (*http.Response, error) {
					tries++
					return nil, c.err
				})}.RoundTrip(request)
				wantIs(t, err, c.err)
				if took := time.Since(began); took > time.Second {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}
