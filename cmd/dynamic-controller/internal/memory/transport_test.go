package memory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

type respond string

func (text respond) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(text))),
	}, nil
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
			ctx, r := b.Reserve(t.Context(), Owner{Type: "a"})
			defer r.Release()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://x/", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := Transport{RoundTripper: respond(test.response), Reduce: test.reduce}.RoundTrip(request)
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

// A page can be many times as large as a reservation.
func TestTransport_Pages(t *testing.T) {
	const items = 100
	item := `{"metadata":{"name":"` + strings.Repeat("x", mib) + `"}}`
	pages := map[string]string{
		"items":        `{"kind":"L","items":[` + strings.Repeat(item+",", items-1) + item + `],"metadata":{"continue":"c"}}`,
		"no items":     `{"kind":"L","items":[],"metadata":{}}`,
		"absent items": `{"kind":"L","items":null,"metadata":{}}`,
		"no fields":    ` { } `,
	}
	wants := map[string]string{
		"items": `{"kind":"L","items":[` + strings.Repeat(`{"n":1048576},`, items-1) + `{"n":1048576}],` +
			`"metadata":{"continue":"c"}}`,
		"no items":     pages["no items"],
		"absent items": pages["no items"],
		"no fields":    `{}`,
	}
	reduce := func(item []byte) []byte {
		return fmt.Appendf(nil, `{"n":%d}`, len(item)-len(`{"metadata":{"name":""}}`))
	}
	for name, page := range pages {
		t.Run(name, func(t *testing.T) {
			ctx, r := NewBudget(64*mib, 1).Reserve(t.Context(), Owner{Type: "a"})
			defer r.Release()
			for range 2 { // the second page replaces the first one
				text, err := readThrough(ctx, Transport{RoundTripper: respond(page), ReduceItem: reduce}, listURL)
				if err != nil || text != wants[name] {
					t.Fatalf("got %s, %v", text, err)
				}
				if want := OfJSON(text) + int64(len(text)); r.bytes != want {
					t.Errorf("%d bytes are reserved, want %d", r.bytes, want)
				}
			}
		})
	}
	for name, page := range map[string]string{
		"end of the text": `{"items":[{`, "no object": `[]`, "no items": `{"items":{}}`, "no value": `{"a":}`,
		"items that are too large": `{"items":[` + strings.Repeat(`"",`, 8*mib) + `""]}`,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, r := NewBudget(64*mib, 1).Reserve(t.Context(), Owner{Type: "a"})
			defer r.Release()
			keep := func(item []byte) []byte { return item }
			text, err := readThrough(ctx, Transport{RoundTripper: respond(page), ReduceItem: keep}, listURL)
			if err == nil {
				t.Errorf("got %d bytes", len(text))
			}
			if r.bytes != 0 {
				t.Errorf("%d bytes are reserved after %v", r.bytes, err)
			}
		})
	}
}

const listURL = "http://x/?limit=1"

func readThrough(ctx context.Context, transport http.RoundTripper, url string) (string, error) {
	method := http.MethodGet
	if url == "" {
		method, url = http.MethodDelete, "http://x/"
	}
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return "", err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(response.Body)
	return string(text), errors.Join(err, response.Body.Close())
}

type accepts struct{}

func (accepts) RoundTrip(request *http.Request) (*http.Response, error) {
	return respond(`{"accept":"` + request.Header.Get("Accept") + `"}`).RoundTrip(request)
}

func TestTransport_PagesContainMetadata(t *testing.T) {
	keep := func(text []byte) []byte { return text }
	for name, test := range map[string]struct {
		url       string
		transport Transport
		want      string
	}{
		"a page":                   {listURL, Transport{ReduceItem: keep}, "as=PartialObjectMetadataList;"},
		"an object":                {"http://x/", Transport{ReduceItem: keep}, `""`},
		"a list of another client": {listURL, Transport{Reduce: keep}, `""`},
	} {
		test.transport.RoundTripper = accepts{}
		text, err := readThrough(t.Context(), test.transport, test.url)
		if err != nil || !strings.Contains(text, test.want) {
			t.Errorf("%s: got %s, %v", name, text, err)
		}
	}
}

// The response to a deletion contains the deleted object, whose metadata can be large.
func TestTransport_ResponsesToDeletionsAreDropped(t *testing.T) {
	ctx, r := NewBudget(mib, 1).Reserve(t.Context(), Owner{Type: "a"})
	defer r.Release()
	large := respond(`{"metadata":{"finalizers":[` + strings.Repeat(`"a/b",`, mib) + `"a/b"]}}`)
	text, err := readThrough(ctx, Transport{RoundTripper: large}, "")
	if err != nil || !strings.Contains(text, `"kind":"Status"`) || r.bytes != 0 {
		t.Errorf("got %.100s with %d reserved bytes: %v", text, r.bytes, err)
	}
}
