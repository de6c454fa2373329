package apiproxy

import (
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

// Proxy passes requests on to an API server. Its methods may be called concurrently.
type Proxy struct {
	server *httptest.Server
	to     http.RoundTripper

	mu    sync.Mutex // guards calls
	calls []Call
}

// Start starts a proxy before the config's API server, which is asked with none of the config's credentials. Close ends
// it. Wrappers stand between the proxy and the API server, the first of them nearest to the client, and may meddle with what
// passes.
func Start(cfg *rest.Config, wrappers ...transport.WrapperFunc) (*Proxy, error) {
	target, err := url.Parse(cfg.Host)
	if err != nil {
		return nil, err
	}
	p := &Proxy{}
	if p.to, err = rest.TransportFor(rest.AnonymousClientConfig(cfg)); err != nil {
		return nil, err
	}
	way := p.to
	for _, wrap := range slices.Backward(wrappers) {
		way = wrap(way)
	}
	p.server = httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     way,
		FlushInterval: -1, // what a watch says is passed on at once
		ErrorLog:      log.New(io.Discard, "", 0),
		ModifyResponse: func(answer *http.Response) error {
			p.note(answer.Request, answer.StatusCode)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, _ error) {
			p.note(r, http.StatusBadGateway)
			w.WriteHeader(http.StatusBadGateway)
		},
	})
	p.server.EnableHTTP2 = true
	p.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.server.StartTLS()
	return p, nil
}

func (p *Proxy) note(r *http.Request, status int) {
	c := CallOf(r)
	c.Status = status
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, c)
}

// URL is where the proxy listens.
func (p *Proxy) URL() string { return p.server.URL }

// CAData is the certificate to trust, in PEM.
func (p *Proxy) CAData() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
}

// Calls returns all that was answered so far, in the order of the answers. A later call returns the same and more.
func (p *Proxy) Calls() []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// Close cuts all connections and ends the proxy.
func (p *Proxy) Close() {
	p.server.CloseClientConnections()
	p.server.Close()
	utilnet.CloseIdleConnectionsFor(p.to)
}
