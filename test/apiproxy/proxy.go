package apiproxy

import (
	"bytes"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// Proxy forwards requests to an API server. Its methods can be called concurrently.
type Proxy struct {
	server *httptest.Server
	to     http.RoundTripper

	mu    sync.Mutex // Guards calls.
	calls []Call
}

// Start starts a proxy in front of the API server that cfg refers to. The proxy does not use the credentials in cfg.
// The wrappers can inspect and modify requests and responses between the proxy and the API server. The first wrapper is
// the one closest to the client. The caller must call Close.
func Start(cfg *rest.Config, wrappers ...transport.WrapperFunc) (*Proxy, error) {
	target, err := url.Parse(cfg.Host)
	if err != nil {
		return nil, err
	}
	p := &Proxy{}
	if p.to, err = rest.TransportFor(rest.AnonymousClientConfig(cfg)); err != nil {
		return nil, err
	}
	wrapped := p.to
	for _, wrap := range slices.Backward(wrappers) {
		wrapped = wrap(wrapped)
	}
	p.server = httptest.NewUnstartedServer(readBodyFirst(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     wrapped,
		FlushInterval: -1, // Forward watch events immediately.
		ErrorLog:      log.New(io.Discard, "", 0),
		ModifyResponse: func(answer *http.Response) error {
			p.record(answer.Request, answer.StatusCode)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, _ error) {
			p.record(r, http.StatusBadGateway)
			w.WriteHeader(http.StatusBadGateway)
		},
	}))
	p.server.EnableHTTP2 = true
	p.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.server.StartTLS()
	return p, nil
}

// readBodyFirst reads the bodies of requests before it calls next. An API server can deny a request before it has read
// the body. An HTTP/2 client then stops sending the body, and waits for the end of the response. ReverseProxy does not
// end the response before it has read the body, so that both would wait forever.
func readBodyFirst(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return // the client has cancelled the request
			}
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		}
		next.ServeHTTP(w, r)
	})
}

func (p *Proxy) record(r *http.Request, status int) {
	c := CallOf(r)
	c.Status = status
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, c)
}

// URL returns the base URL of the proxy.
func (p *Proxy) URL() string { return p.server.URL }

// CAData returns the PEM-encoded certificate of the proxy.
func (p *Proxy) CAData() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
}

// Calls returns the calls that have received a response so far, in the order of the responses.
func (p *Proxy) Calls() []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// Close closes all connections and stops the proxy.
func (p *Proxy) Close() {
	p.server.CloseClientConnections()
	p.server.Close()
	utilnet.CloseIdleConnectionsFor(p.to)
}
