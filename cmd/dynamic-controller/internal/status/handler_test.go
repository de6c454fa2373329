package status

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

func TestHandler_RequestsShareDocuments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		built, cost := 0, time.Duration(0)
		h := &handler{build: func() *Replica {
			built++
			time.Sleep(cost)
			return &Replica{Kind: fmt.Sprint(built)}
		}}
		for _, step := range []struct {
			wait, cost time.Duration
			want       string
		}{
			{0, 0, "1"}, {minAge - time.Millisecond, 0, "1"}, {time.Millisecond, 500 * time.Millisecond, "2"},
			{costFactor*500*time.Millisecond - time.Millisecond, 0, "2"}, {time.Millisecond, 0, "3"},
		} {
			time.Sleep(step.wait)
			cost = step.cost
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path, nil))
			var got Replica
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Kind != step.want {
				t.Errorf("after %s: got %q (error %v), want document %s", step.wait, w.Body, err, step.want)
			}
		}
	})
}

func TestHandler_NegotiatesTheEncodingAndTheMethod(t *testing.T) {
	h := &handler{build: func() *Replica { return &Replica{Kind: Kind} }}
	for _, test := range []struct {
		method, accept string
		code           int
		compressed     bool
	}{
		{http.MethodGet, "", 200, false},
		{http.MethodGet, "gzip", 200, true},
		{http.MethodGet, "deflate, gzip;q=0.5", 200, true},
		{http.MethodGet, "gzip; q=0", 200, false},
		{http.MethodGet, "gzip;q=0.0", 200, false},
		{http.MethodGet, "deflate", 200, false},
		{http.MethodHead, "", 200, false},
		{http.MethodPost, "", 405, false},
		{http.MethodDelete, "", 405, false},
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(test.method, Path, nil)
		r.Header.Set("Accept-Encoding", test.accept)
		h.ServeHTTP(w, r)
		if compressed := w.Header().Get("Content-Encoding") == "gzip"; w.Code != test.code || compressed != test.compressed {
			t.Errorf("%s with %q: got %d, compressed: %t", test.method, test.accept, w.Code, compressed)
		}
		if test.method != http.MethodGet {
			continue
		}
		body := io.Reader(w.Body)
		if test.compressed {
			var err error
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		}
		var got Replica
		if err := json.NewDecoder(body).Decode(&got); err != nil || got.Kind != Kind {
			t.Errorf("%s with %q: got %+v, error %v", test.method, test.accept, got, err)
		}
	}
}
