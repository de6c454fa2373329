package statusclient

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/status"
)

// serve starts a replica that answers all requests with a code and a body.
func serve(t *testing.T, code int, body string) (url string, settings *tls.Config, requests *[]string) {
	t.Helper()
	requests = &[]string{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, _ := io.ReadAll(r.Body)
		*requests = append(*requests, fmt.Sprintf("%s %s %s%s%s", r.Method, r.URL, r.Header.Get("Authorization"), sent,
			r.Header.Get("Content-Type")))
		w.Header().Set("Location", "https://example.com")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return server.URL, &tls.Config{RootCAs: roots}, requests
}

const document = `{"apiVersion": "` + status.APIVersion + `", "kind": "` + status.Kind + `", "version": "v1"}`

func TestClient_SendsTheTokenOfTheCredentials(t *testing.T) {
	dir := t.TempDir()
	file, plugin := filepath.Join(dir, "token"), filepath.Join(dir, "plugin")
	script := `#!/bin/sh
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "plugged"}}'
`
	err1 := os.WriteFile(file, []byte("filed"), 0o600)
	err2 := os.WriteFile(plugin, []byte(script), 0o700) //nolint:gosec // it is executed
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		credentials rest.Config
		token       string // "" without a token
	}{
		"a token":       {rest.Config{BearerToken: "given"}, "given"},
		"a token file":  {rest.Config{BearerTokenFile: file}, "filed"},
		"nothing":       {rest.Config{}, ""},
		"a password":    {rest.Config{Username: "user", Password: "secret"}, ""},
		"a certificate": {rest.Config{TLSClientConfig: rest.TLSClientConfig{CertData: []byte("x")}}, ""},
		"a plugin": {rest.Config{ExecProvider: &clientcmdapi.ExecConfig{
			Command: plugin, APIVersion: "client.authentication.k8s.io/v1",
			InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		}}, "plugged"},
	} {
		t.Run(name, func(t *testing.T) {
			url, settings, requests := serve(t, http.StatusOK, document)
			c, err := NewForURL(url, &test.credentials, settings)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			doc, err := c.Status(t.Context())
			if test.token == "" {
				if !errors.Is(err, ErrNoToken) || len(*requests) > 0 {
					t.Errorf("got error %v, requests %q", err, *requests)
				}
				return
			}
			if err != nil || doc.Version != "v1" || len(*requests) != 1 ||
				(*requests)[0] != "GET /status Bearer "+test.token {
				t.Errorf("got %+v, error %v, requests %q", doc, err, *requests)
			}
		})
	}
}

func TestClient_ExplainsErrors(t *testing.T) {
	for name, test := range map[string]struct {
		code int
		body string
		want string
	}{
		"unauthorized":     {401, "Unauthorized", "does not accept the token"},
		"forbidden":        {403, `user "a" cannot get path "/status"`, "bind the user to the ClusterRole"},
		"another server":   {404, "not found", "has no /status"},
		"a redirect":       {302, "elsewhere", "302 Found"},
		"a failure":        {500, strings.Repeat("x", 1000), "500 Internal Server Error: xxx"},
		"no JSON":          {200, "<html>", "decode the replica's response"},
		"another document": {200, `{"apiVersion": "v1", "kind": "Status"}`, `serves "v1" "Status"`},
		"a newer document": {200, `{"apiVersion": "v2", "kind": "ReplicaStatus", "version": "v9"}`,
			`use the same version of the program as the replica ("v9")`},
	} {
		t.Run(name, func(t *testing.T) {
			url, settings, requests := serve(t, test.code, test.body)
			c, err := NewForURL(url, &rest.Config{BearerToken: "given"}, settings)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, err = c.Status(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 700 || len(*requests) != 1 {
				t.Errorf("got error %v, requests %q", err, *requests)
			}
		})
	}
	url, _, requests := serve(t, http.StatusOK, document)
	c, err := NewForURL(url, &rest.Config{BearerToken: "given"}, &tls.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Status(t.Context())
	if err == nil || !strings.Contains(err.Error(), "set --certificate-authority") || len(*requests) != 0 {
		t.Errorf("got error %v, requests %q", err, *requests)
	}
}

func TestClient_Retry(t *testing.T) {
	url, settings, requests := serve(t, http.StatusOK, `{"retried": 3}`)
	c, err := NewForURL(url, &rest.Config{BearerToken: "given"}, settings)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := c.Retry(t.Context(), status.RetryRequest{Type: "websites", Namespace: "shop", Name: "flowers"})
	const want = `POST /status/retry Bearer given{"type":"websites","namespace":"shop","name":"flowers"}application/json`
	if err != nil || got != 3 || len(*requests) != 1 || (*requests)[0] != want {
		t.Errorf("got %d, error %v, requests %q", got, err, *requests)
	}
}

func TestNewForURL_RejectsURLsThatAreNotTheRoot(t *testing.T) {
	credentials := &rest.Config{BearerToken: "given"}
	for address, valid := range map[string]bool{
		"https://localhost:8443": true, "https://localhost:8443/": true, "https://[::1]": true,
		"http://localhost:8443": false, "localhost:8443": false, "": false, "https://": false, "https://a/status": false,
		"https://a?b": false, "https://user@a": false, "://": false,
	} {
		if _, err := NewForURL(address, credentials, nil); (err == nil) != valid {
			t.Errorf("%q: got error %v", address, err)
		}
	}
	credentials.Impersonate.UserName = "admin"
	if _, err := NewForURL("https://localhost", credentials, nil); err == nil {
		t.Error("impersonation is ignored")
	}
}
