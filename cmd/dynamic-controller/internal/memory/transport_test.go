package memory

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

type respond string

func (text respond) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(text)))}, nil
}

// The memory for a response is reserved before the response is decoded, and that for its text is released.
func TestTransport(t *testing.T) {
	small, large := `{"a":1}`, `[`+strings.Repeat("{},", mib)+`{}]`
	for name, test := range map[string]struct {
		response string
		reduce   func([]byte) []byte
		fails    bool
	}{
		"small":             {response: small},
		"large":             {response: large, fails: true},
		"large and reduced": {response: large, reduce: func([]byte) []byte { return []byte(small) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBudget(64*mib, 1)
			ctx, r := b.Reserve(t.Context(), "a")
			defer r.Release()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://x/", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := Transport{respond(test.response), test.reduce}.RoundTrip(request)
			var tooLarge *TooLargeError
			if test.fails {
				if !errors.As(err, &tooLarge) || !errors.As(context.Cause(ctx), &tooLarge) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(response.Body)
			if err != nil || string(text) != small || response.Body.Close() != nil {
				t.Errorf("got %s, %v", text, err)
			}
			if want := OfJSON(small) + int64(len(small)); r.bytes != want {
				t.Errorf("%d bytes are reserved, want %d", r.bytes, want)
			}
		})
	}
}
