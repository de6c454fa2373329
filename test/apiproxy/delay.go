package apiproxy

import (
	"bytes"
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/transport"
)

// DelayWatches returns a wrapper that delays the events of watches, as a loaded API server or a slow network does. The
// order of the events is kept. delay is called for each part of the response to a watch. It is called concurrently.
// Errors of the API server are not delayed.
func DelayWatches(delay func(watch Call) time.Duration) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if call := CallOf(r); err == nil && call.Verb == "watch" && response.StatusCode == http.StatusOK {
				response.Body = newDelayedBody(response.Body, func() time.Duration { return delay(call) })
			}
			return response, err
		})
	}
}

// delayedBody reads its source immediately and returns the content after a delay.
type delayedBody struct {
	source io.ReadCloser
	chunks chan delayedChunk
	closed chan struct{}
	once   sync.Once
	rest   bytes.Buffer // the unread part of the current chunk
	err    error        // follows the rest
}

type delayedChunk struct {
	content []byte
	due     time.Time
	err     error
}

func newDelayedBody(source io.ReadCloser, delay func() time.Duration) *delayedBody {
	b := &delayedBody{source: source, chunks: make(chan delayedChunk, 1000), closed: make(chan struct{})}
	go func() {
		for {
			content := make([]byte, 64<<10)
			n, err := source.Read(content)
			select {
			case b.chunks <- delayedChunk{content: content[:n], due: time.Now().Add(delay()), err: err}:
			case <-b.closed:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return b
}

// Read returns the content that is due. An error of the source follows the content that was read together with it.
func (b *delayedBody) Read(p []byte) (int, error) {
	if b.rest.Len() == 0 {
		if b.err != nil {
			return 0, b.err
		}
		select {
		case chunk := <-b.chunks:
			wait := time.NewTimer(time.Until(chunk.due))
			defer wait.Stop()
			select {
			case <-wait.C:
			case <-b.closed:
				return 0, io.ErrClosedPipe
			}
			b.rest.Write(chunk.content)
			b.err = chunk.err
			if b.rest.Len() == 0 {
				return 0, b.err
			}
		case <-b.closed:
			return 0, io.ErrClosedPipe
		}
	}
	return b.rest.Read(p)
}

func (b *delayedBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.source.Close()
}
