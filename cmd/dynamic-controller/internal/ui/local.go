package ui

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// statusPath is the path from which the script of the page reads, and the path of the status on a replica.
const statusPath = "/status"

// Local serves the page to the browser of one user on the same host. It reads only the status from the replica, with
// the credentials of this user. The page is embedded in this program, so nothing that a replica returns is executed.
//
// The paths contain a secret, because other users on the host and other sites can find out the port. The Host header is
// checked, so that a site cannot read the status through its own host name that resolves to 127.0.0.1.
type Local struct {
	get    func(context.Context) (*http.Response, error)
	page   http.Handler
	host   string
	secret string
}

// NewLocal returns a Local for the address of a listener on 127.0.0.1. get requests the status from a replica.
func NewLocal(address net.Addr, get func(context.Context) (*http.Response, error)) *Local {
	return &Local{get: get, page: New(), host: address.String(), secret: rand.Text()}
}

// URL returns the URL of the page. It contains the secret.
func (l *Local) URL() string {
	return (&url.URL{Scheme: "http", Host: l.host, Path: "/" + l.secret + Path}).String()
}

// ServeHTTP implements [http.Handler].
func (l *Local) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secret, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	site := r.Header.Get("Sec-Fetch-Site")
	switch {
	case r.Host != l.host:
		http.Error(w, "unknown host", http.StatusMisdirectedRequest)
	case subtle.ConstantTimeCompare([]byte(secret), []byte(l.secret)) != 1:
		http.NotFound(w, r)
	case site != "" && site != "same-origin" && site != "none":
		http.Error(w, "requests from other sites are not allowed", http.StatusForbidden)
	case "/"+path == Path:
		l.page.ServeHTTP(w, r)
	case "/"+path == statusPath && r.Method == http.MethodGet:
		l.serveStatus(w, r)
	default:
		http.NotFound(w, r)
	}
}

// serveStatus returns the replica's response, without its headers.
func (l *Local) serveStatus(w http.ResponseWriter, r *http.Request) {
	// Connecting to another replica can take longer than the server's write timeout.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	response, err := l.get(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	contentType := "text/plain; charset=utf-8"
	if response.StatusCode == http.StatusOK {
		contentType = "application/json"
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(response.StatusCode)
	if _, err := io.Copy(w, response.Body); err != nil {
		panic(http.ErrAbortHandler) // the browser must not mistake a partial response for a complete one
	}
}
