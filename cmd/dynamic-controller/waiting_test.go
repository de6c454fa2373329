package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// reported is the stderr of a command.
type reported struct {
	written chan struct{} // closed after the first write

	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (r *reported) Write(data []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.text.Len() == 0 {
		close(r.written)
	}
	return r.text.Write(data)
}

// The commands that read from a cluster or a replica report what they are waiting for, because a server can be slow.
func TestCommands_ReportWhatTheyWaitFor(t *testing.T) {
	for _, test := range []struct {
		args string
		path string
	}{
		{"why blueprint/websites", "/version"},
		{"tree blueprint/websites", "/version"},
		{"validate KUBECONFIG", "/version"},
		{"render KUBECONFIG KUBECONFIG", "/version"},
		{"status", "/version"},
		{"types", "/version"},
		{"parked", "/version"},
		{"ui", "/version"},
		{"status --token a --insecure-skip-tls-verify --url SERVER", "/status"},
	} {
		t.Run(test.args, func(t *testing.T) {
			t.Parallel()
			errs := &reported{written: make(chan struct{})}
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-errs.written: // The server is slow until the command has reported it.
				case <-r.Context().Done():
				}
				http.Error(w, "too slow", http.StatusTeapot)
			}))
			t.Cleanup(server.Close)
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}],
contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}]}`, server.URL)
			if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			args := strings.NewReplacer("KUBECONFIG", kubeconfig, "SERVER", server.URL).Replace(test.args)
			cmd, out := newCommand("dynamic-controller"), &strings.Builder{}
			cmd.SetOut(out)
			cmd.SetErr(errs)
			cmd.SetArgs(append(strings.Fields(args), "--kubeconfig", kubeconfig))
			if err := cmd.ExecuteContext(t.Context()); err == nil {
				t.Error("the command succeeded")
			}
			want := "^waiting for " + regexp.QuoteMeta(server.URL) + ": GET " + test.path + ` \(\d+s\)\n`
			if got := errs.text.String(); !regexp.MustCompile(want).MatchString(got) {
				t.Errorf("got %q on stderr, want %q", got, want)
			}
			if out.Len() > 0 {
				t.Errorf("got %q on stdout", out)
			}
		})
	}
}
