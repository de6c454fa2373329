package statusclient

import (
	"context"
	"net/http"
)

// Get returns the replica's response to a GET request, whatever its status code is. The caller must close the
// body.
func (c *Client) Get(ctx context.Context, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.JoinPath(path).String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(r)
	if err != nil {
		return nil, c.withRemedy(err)
	}
	return response, nil
}
