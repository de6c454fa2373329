package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/status"
)

func TestIsLoopback(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:80": true, "127.1.2.3:80": true, "[::1]:80": true, "localhost:80": true,
		":80": false, "0.0.0.0:80": false, "[::]:80": false, "10.0.0.1:80": false, "example.com:80": false,
		"localhost.example.com:80": false, "127.0.0.1": false,
	} {
		if got := isLoopback(address); got != want {
			t.Errorf("%s: got %t", address, got)
		}
	}
}

func TestListenLoopback_ChecksTheAddressOfTheListener(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1:0": true, "localhost:0": true, "0.0.0.0:0": false} {
		listener, err := listenLoopback(logr.Discard(), flagMetrics, address)
		if got := err == nil; got != want {
			t.Errorf("%s: got error %v", address, err)
		}
		if err == nil {
			listener.Close()
		} else if !strings.Contains(err.Error(), "is not a loopback address") {
			t.Errorf("%s: got error %v", address, err)
		}
	}
}

func TestVerbosity_SetsTheLevelOfTheLog(t *testing.T) {
	var out bytes.Buffer
	log := testLogger(t, &out, logsapi.LoggingConfiguration{Format: formatJSON})
	h := &verbosity{log: log}
	for _, step := range []struct {
		method, body string
		code         int
		want         string
		level        int // afterwards
	}{
		{http.MethodGet, "", http.StatusOK, "0\n", 0},
		{http.MethodPut, "3\n", http.StatusOK, "successfully set verbosity to 3", 3},
		{http.MethodGet, "", http.StatusOK, "3\n", 3},
		{http.MethodPut, "8", http.StatusBadRequest, "from 0 to 7", 3},
		{http.MethodPut, "7", http.StatusOK, "successfully set verbosity to 7", 7},
		{http.MethodPut, "3", http.StatusOK, "successfully set verbosity to 3", 3},
		{http.MethodPut, "-1", http.StatusBadRequest, "from 0 to 7", 3},
		{http.MethodPut, "many", http.StatusBadRequest, "from 0 to 7", 3},
		{http.MethodPut, "1" + strings.Repeat(" ", 1<<20), http.StatusBadRequest, "from 0 to 7", 3},
		{http.MethodPost, "1", http.StatusMethodNotAllowed, "GET or PUT", 3},
		{http.MethodPut, "0", http.StatusOK, "successfully set verbosity to 0", 0},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(step.method, "/", strings.NewReader(step.body))
		before := h.level
		out.Reset()
		h.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "operator"})))
		changed := fmt.Sprintf(`"msg":"Verbosity changed","v":0,"from":%d,"to":%d,"user":"operator"`, before, step.level)
		isChange := step.method == http.MethodPut && step.code == http.StatusOK
		if strings.Contains(out.String(), changed) != isChange {
			t.Errorf("%s %.10q: logged %q", step.method, step.body, out.String())
		}
		if w.Code != step.code || !strings.Contains(w.Body.String(), step.want) {
			t.Errorf("%s %.10q: got %d, %q, want %d, %q", step.method, step.body, w.Code, w.Body, step.code, step.want)
		}
		out.Reset()
		log.V(step.level).Info("Logged")
		log.V(step.level + 1).Info("Not logged")
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"msg":"Logged"`) {
			t.Errorf("after %s %.10q: logged %q at level %d", step.method, step.body, got, step.level)
		}
		if !klog.V(klog.Level(step.level)).Enabled() || klog.V(klog.Level(step.level+1)).Enabled() {
			t.Errorf("after %s %.10q: the level of client-go is not %d", step.method, step.body, step.level)
		}
	}
}

// diagnosticPaths returns all diagnostics paths, some paths below them, and some that do not exist.
func diagnosticPaths() []string {
	m := newDiagnosticsMux(logr.Discard(), http.NotFoundHandler(), cliflag.NamedFlagSets{}, 0,
		newPages(logr.Discard(), &engines{}, &status.Sources{}))
	return append(slices.Sorted(slices.Values(m.paths)), "/debug/pprof/heap", "/debug/pprof", "/", "/unknown", "//metrics")
}

// diagnosticsClient sends requests to the diagnostics of a process over TLS.
type diagnosticsClient struct {
	*process
	http http.Client
	url  string
}

func (p *process) diagnostics(roots *x509.CertPool) *diagnosticsClient {
	p.Helper()
	p.waitLog(line{Msg: "Listening", Endpoint: flagMetrics})
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost"}}
	p.Cleanup(transport.CloseIdleConnections)
	return &diagnosticsClient{
		process: p, http: http.Client{Transport: transport, Timeout: waitTimeout, CheckRedirect: func(*http.Request,
			[]*http.Request) error {
			return http.ErrUseLastResponse
		}},
		url: "https://" + p.logged(line{Msg: "Listening", Endpoint: flagMetrics})[0].Address,
	}
}

// send returns the response to a request with a token. Headers are pairs of a name and a value.
func (c *diagnosticsClient) send(token, method, path, body string, headers ...string) (code int, response string) {
	c.Helper()
	request, err := http.NewRequestWithContext(c.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	for pair := range slices.Chunk(headers, 2) {
		request.Header.Set(pair[0], pair[1])
	}
	answer, err := c.http.Do(request)
	if err != nil {
		c.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		c.Fatal(err)
	}
	return answer.StatusCode, string(data)
}

// token creates a ServiceAccount with the permissions, and returns its token.
func (a *api) token(name string, rules ...rbacv1.PolicyRule) string {
	a.Helper()
	config, err := clientcmd.LoadFromFile(a.account(name, rules...))
	if err != nil {
		a.Fatal(err)
	}
	return config.AuthInfos["it"].Token
}

// exampleRules returns the rules of a ClusterRole in install/kustomize.
func exampleRules(t *testing.T, name string) []rbacv1.PolicyRule {
	t.Helper()
	return roleRules(t, "ClusterRole", name)
}

// roleRules returns the rules of a Role or ClusterRole in install/kustomize.
func roleRules(t *testing.T, kind, name string) []rbacv1.PolicyRule {
	t.Helper()
	data, err := os.ReadFile("../../install/kustomize/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		var role rbacv1.ClusterRole
		if err := decoder.Decode(&role); err != nil {
			t.Fatalf("%s %s: %v", kind, name, err)
		}
		if role.Kind == kind && role.Name == name {
			return role.Rules
		}
	}
}

func TestDiagnostics_RequirePermission(t *testing.T) {
	a := newAPI(t)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	roots := x509.NewCertPool()
	roots.AddCert(writeCertificate(t, certFile, keyFile))
	p := startServing(t, a.cluster.Kubeconfig(), "--"+flagMetrics, "127.0.0.1:0", "--"+flagCertFile, certFile,
		"--"+flagKeyFile, keyFile)
	c := p.diagnostics(roots)
	stranger := a.token("stranger")
	scraper := a.token("scraper", exampleRules(t, "dynamic-controller-metrics-reader")...)
	operator := a.token("operator", exampleRules(t, "dynamic-controller-operator")...)

	paths := diagnosticPaths()
	for _, path := range paths {
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete} {
			for token, want := range map[string]int{
				"": http.StatusUnauthorized, "wrong": http.StatusUnauthorized, stranger: http.StatusForbidden,
			} {
				if code, body := c.send(token, method, path, "1"); code != want || len(body) > 200 {
					t.Errorf("%s %s: got %d, %q, want %d", method, path, code, body, want)
				}
			}
		}
		want := http.StatusForbidden
		if path == pathMetrics {
			want = http.StatusOK
		}
		if code, _ := c.send(scraper, http.MethodGet, path, ""); code != want {
			t.Errorf("%s as the scraper: got %d, want %d", path, code, want)
		}
		query := ""
		if path == "/debug/pprof/profile" || path == "/debug/pprof/trace" {
			query = "?seconds=1"
		}
		want = http.StatusOK
		switch path {
		case pathMetrics, "/", "/unknown", "//metrics", status.RetryPath: // the last one with POST only
			want = http.StatusForbidden
		case "/debug/pprof":
			want = http.StatusTemporaryRedirect
		}
		if code, body := c.send(operator, http.MethodGet, path+query, ""); code != want {
			t.Errorf("%s as the operator: got %d, %.200q, want %d", path, code, body, want)
		}
	}
	if code, body := c.send(operator, http.MethodPost, status.RetryPath, "{}",
		"Content-Type", "application/json"); code != http.StatusOK {
		t.Errorf("POST %s as the operator: got %d, %.200q", status.RetryPath, code, body)
	}
	if code, _ := c.send(operator, http.MethodDelete, "/statusz", ""); code != http.StatusForbidden {
		t.Errorf("DELETE /statusz as the operator: got %d", code)
	}
	if len(paths) < 9 {
		t.Errorf("only %d paths were checked", len(paths))
	}
	c.checkPages(operator)
}

// checkPages checks the content of pages.
func (c *diagnosticsClient) checkPages(token string) {
	c.Helper()
	if code, body := c.send(token, http.MethodPut, "/debug/flags/v", "2"); code != http.StatusOK {
		c.Errorf("got %d, %q", code, body)
	}
	if _, body := c.send(token, http.MethodGet, "/debug/flags/v", ""); body != "2\n" {
		c.Errorf("got the verbosity %q, want 2", body)
	}
	_, body := c.send(token, http.MethodGet, "/flagz", "")
	for _, want := range []string{"dynamic-controller flagz", "kubeconfig", "workers"} {
		if !strings.Contains(body, want) {
			c.Errorf("/flagz has no %s: %s", want, body)
		}
	}
	_, body = c.send(token, http.MethodGet, "/statusz", "")
	for _, want := range []string{"dynamic-controller statusz", "Go version", "/debug", "/flagz", "/metrics"} {
		if !strings.Contains(body, want) {
			c.Errorf("/statusz has no %s: %s", want, body)
		}
	}
	for path, kind := range map[string]string{"/statusz": "Statusz", "/flagz": "Flagz"} {
		code, body := c.send(token, http.MethodGet, path, "",
			"Accept", "application/json;v=v1beta1;g=config.k8s.io;as="+kind)
		var got struct {
			Kind  string
			Paths []string
			Flags map[string]string
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil || got.Kind != kind ||
			len(got.Paths) == 0 && got.Flags["leader-elect"] != "true" {
			c.Errorf("%s as JSON: got %d, %s (error %v)", path, code, body, err)
		}
	}
	// The server gives clients five seconds to send a request.
	const seconds = 6
	began := time.Now()
	if code, _ := c.send(token, http.MethodGet, fmt.Sprint("/debug/pprof/profile?seconds=", seconds), ""); code !=
		http.StatusOK || time.Since(began) < seconds*time.Second {
		c.Errorf("the profile took %s and returned %d", time.Since(began), code)
	}
}

func TestDiagnostics_WithoutTLSOnlyMetrics(t *testing.T) {
	a := newAPI(t)
	p := startReplica(t, a.cluster.Kubeconfig(), localMetrics...)
	for _, path := range diagnosticPaths() {
		want := http.StatusNotFound
		if path == pathMetrics || path == "//metrics" { // the latter is redirected
			want = http.StatusOK
		}
		if code, _ := p.request(flagMetrics, path); code != want {
			t.Errorf("%s: got %d, want %d", path, code, want)
		}
	}
}

func TestDiagnostics_SelfSignedCertificate(t *testing.T) {
	a := newAPI(t)
	p := startReplica(t, a.cluster.Kubeconfig(), "--"+flagMetrics, "127.0.0.1:0")
	c := p.diagnostics(x509.NewCertPool())
	_, err := c.http.Get(c.url + pathMetrics)
	var untrusted *tls.CertificateVerificationError
	if !errors.As(err, &untrusted) || untrusted.UnverifiedCertificates[0].VerifyHostname("localhost") != nil {
		t.Errorf("got the error %v", err)
	}
}
