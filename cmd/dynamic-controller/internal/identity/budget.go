package identity

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
)

// ErrResponseTooLarge is returned by requests whose responses exceed a [ResponseBudget].
var ErrResponseTooLarge = errors.New("the response is too large")

// ResponseBudget limits the total size of the responses to a sequence of requests. Bytes is the number of bytes that
// are left. It is safe for concurrent use by the requests of one context.
type ResponseBudget struct {
	Bytes int64
	mu    sync.Mutex // guards Bytes
}

// take removes bytes from the budget, and reports whether it is not exceeded.
func (b *ResponseBudget) take(bytes int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Bytes -= bytes
	return b.Bytes >= 0
}

type budgetKey struct{}

// WithResponseBudget returns a context for requests that share a budget. They must be sent with the clients of
// a [Manager]. If a response exceeds the budget, the rest of the response is not read, and
// later requests are not sent.
func WithResponseBudget(ctx context.Context, budget *ResponseBudget) context.Context {
	return context.WithValue(ctx, budgetKey{}, budget)
}

// budgeted is a transport that limits each response to the budget in the context of its request.
type budgeted struct{ http.RoundTripper }

func (b budgeted) RoundTrip(request *http.Request) (*http.Response, error) {
	budget, has := request.Context().Value(budgetKey{}).(*ResponseBudget)
	if has && !budget.take(0) {
		return nil, ErrResponseTooLarge
	}
	response, err := b.RoundTripper.RoundTrip(request)
	if has && err == nil {
		response.Body = budgetedBody{response.Body, budget}
	}
	return response, err
}

// WrappedRoundTripper returns the wrapped transport, so that its idle connections can be closed.
func (b budgeted) WrappedRoundTripper() http.RoundTripper { return b.RoundTripper }

type budgetedBody struct {
	io.ReadCloser
	budget *ResponseBudget
}

func (b budgetedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.budget.take(int64(n)) {
		return 0, ErrResponseTooLarge
	}
	return n, err
}
