package identity

import (
	"context"
	"errors"
	"io"
	"net/http"
)

// ErrResponseTooLarge is returned by requests whose responses exceed a [ResponseBudget].
var ErrResponseTooLarge = errors.New("the response is too large")

// ResponseBudget limits the total size of the responses to a sequence of requests. Bytes is the number of bytes that
// are left.
type ResponseBudget struct{ Bytes int64 }

type budgetKey struct{}

// WithResponseBudget returns a context for requests that share a budget. The requests must not be concurrent, and must
// be sent with the clients of a [Manager]. If a response exceeds the budget, the rest of the response is not read, and
// later requests are not sent.
func WithResponseBudget(ctx context.Context, budget *ResponseBudget) context.Context {
	return context.WithValue(ctx, budgetKey{}, budget)
}

// budgeted is a transport that limits each response to the budget in the context of its request.
type budgeted struct{ http.RoundTripper }

func (b budgeted) RoundTrip(request *http.Request) (*http.Response, error) {
	budget, has := request.Context().Value(budgetKey{}).(*ResponseBudget)
	if has && budget.Bytes < 0 {
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
	if b.budget.Bytes -= int64(n); b.budget.Bytes < 0 {
		return 0, ErrResponseTooLarge
	}
	return n, err
}
