package statusclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/status"
)

// maxResponse is the maximum size of a response. A document with 5,000 types has a few megabytes.
const maxResponse = 256 << 20

// ErrNoToken is returned if the credentials contain no bearer token.
var ErrNoToken = errors.New("the kubeconfig has no bearer token, and a replica does not accept client certificates " +
	`or passwords: use --token "$(kubectl create token -n NAMESPACE NAME)" with a ServiceAccount that is bound to the ` +
	"ClusterRole and the Role dynamic-controller-operator")

// ErrImpersonation is returned if the credentials impersonate a user.
var ErrImpersonation = errors.New("a replica does not impersonate users: remove --as, --as-group and --as-uid, or " +
	"the impersonation from the kubeconfig, and use --token")

// Client sends requests to one replica. Close must be called.
type Client struct {
	base      *url.URL
	http      http.Client
	transport *http.Transport
	remedy    string // what to do if the certificate cannot be verified
}

// NewForURL returns a Client for the replica at a URL, such as https://localhost:8443. The token is taken from the
// credentials. The TLS settings are those for the URL.
func NewForURL(address string, credentials *rest.Config, settings *tls.Config) (*Client, error) {
	base, err := url.Parse(address)
	if err != nil || base.Scheme != "https" || base.Host == "" || strings.Trim(base.Path, "/") != "" ||
		base.RawQuery != "" || base.User != nil {
		return nil, fmt.Errorf("--url: %q: must have the form https://HOST:PORT, because the token is sent to it", address)
	}
	return newClient(base, credentials, &http.Transport{TLSClientConfig: settings, Proxy: http.ProxyFromEnvironment},
		"set --certificate-authority and --tls-server-name; with --insecure-skip-tls-verify, the token is sent to a server "+
			"whose identity is unknown")
}

// newForDialer returns a Client for a replica that is reached by dial. If settings is nil, the certificate is not
// verified, because replicas have self-signed certificates by default. The peer is then only as trustworthy as the
// connections from the API server to kubelets, which it verifies only with --kubelet-certificate-authority.
func newForDialer(
	dial func(context.Context) (net.Conn, error), credentials *rest.Config, settings *tls.Config,
) (*Client, error) {
	if settings == nil {
		settings = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // see above
	}
	return newClient(&url.URL{Scheme: "https", Host: "replica"}, credentials, &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		TLSClientConfig: settings,
	}, "check --replica-certificate-authority and --replica-server-name")
}

func newClient(
	base *url.URL, credentials *rest.Config, connections *http.Transport, remedy string,
) (*Client, error) {
	if credentials.Impersonate.UserName != "" {
		return nil, ErrImpersonation
	}
	settings, err := credentials.TransportConfig()
	if err != nil {
		return nil, fmt.Errorf("read the credentials: %w", err)
	}
	settings.Username, settings.Password = "", ""
	authenticated, err := transport.HTTPWrappersForConfig(settings, tokenRequired{connections})
	if err != nil {
		return nil, fmt.Errorf("read the credentials: %w", err)
	}
	return &Client{
		base: base, transport: connections, remedy: remedy,
		http: http.Client{Transport: authenticated, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // the token must not be sent elsewhere
		}},
	}, nil
}

// tokenRequired returns ErrNoToken for requests without a bearer token.
type tokenRequired struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t tokenRequired) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
		return nil, ErrNoToken
	}
	return t.RoundTripper.RoundTrip(r)
}

// Close closes idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Status returns the status of the replica.
func (c *Client) Status(ctx context.Context) (*status.Replica, error) {
	var doc status.Replica
	if err := c.do(ctx, http.MethodGet, status.Path, nil, &doc); err != nil {
		return nil, err
	}
	if doc.Kind != status.Kind || doc.APIVersion != status.APIVersion {
		return nil, fmt.Errorf("the replica serves %q %q, but this program reads %q %q: use the same "+
			"version of the program as the replica (%q)", doc.APIVersion, doc.Kind, status.APIVersion, status.Kind, doc.Version)
	}
	return &doc, nil
}

// Retry makes the replica reconcile parked objects again, and returns their number. The replica must be the leader.
func (c *Client) Retry(ctx context.Context, wanted status.RetryRequest) (retried int, err error) {
	body, err := json.Marshal(wanted)
	if err != nil {
		return 0, err
	}
	var response status.RetryResponse
	err = c.do(ctx, http.MethodPost, status.RetryPath, body, &response)
	return response.Retried, err
}

// do sends a request and decodes the response.
func (c *Client) do(ctx context.Context, method, path string, body []byte, response any) error {
	r, err := http.NewRequestWithContext(ctx, method, c.base.JoinPath(path).String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return c.withRemedy(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxResponse))
	if err != nil {
		return fmt.Errorf("read the replica's response: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return responseError(answer.StatusCode, path, data)
	}
	if err := json.Unmarshal(data, response); err != nil {
		return fmt.Errorf("decode the replica's response: %w", err)
	}
	return nil
}

// withRemedy adds the remedy to the error from a request.
func (c *Client) withRemedy(err error) error {
	var untrusted *tls.CertificateVerificationError
	var failed *url.Error
	switch {
	case errors.Is(err, ErrNoToken):
		return ErrNoToken
	case errors.As(err, &untrusted):
		return fmt.Errorf("%w: %s", untrusted, c.remedy)
	case errors.As(err, &failed):
		return fmt.Errorf("connect to the replica: %w", failed.Err)
	}
	return err
}

func responseError(code int, path string, body []byte) error {
	const most = 500
	text := strings.TrimSpace(string(body[:min(len(body), most)]))
	switch code {
	case http.StatusUnauthorized:
		return errors.New("the replica does not accept the token: it may have expired, or belong to another cluster")
	case http.StatusForbidden:
		return fmt.Errorf("%s: bind the user to the ClusterRole dynamic-controller-operator", text)
	case http.StatusNotFound:
		return fmt.Errorf("the server has no %s: it is not a replica, or runs an older version", path)
	}
	return fmt.Errorf("the replica returned %d %s: %s", code, http.StatusText(code), text)
}
