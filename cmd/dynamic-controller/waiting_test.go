package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The commands that read from a cluster report what they are waiting for, because the API server can be slow.
func TestCommands_ReportWhatTheyWaitFor(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-time.After(1500 * time.Millisecond): // Longer than the second after which a command reports.
		}
		http.Error(w, "too slow", http.StatusTeapot)
	}))
	t.Cleanup(server.Close) // After the parallel subtests.
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: %q}}], contexts: [{name: c, context: {cluster: c, user: u}}],
users: [{name: u, user: {}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"why", "blueprint/websites"}, {"tree", "blueprint/websites"}, {"validate", kubeconfig},
		{"render", kubeconfig, kubeconfig}, {"status"}, {"types"}, {"parked"}, {"ui"},
	} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			cmd := newCommand("dynamic-controller")
			out, errs := &strings.Builder{}, &strings.Builder{}
			cmd.SetOut(out)
			cmd.SetErr(errs)
			cmd.SetArgs(append(args, "--kubeconfig", kubeconfig))
			if err := cmd.ExecuteContext(t.Context()); err == nil {
				t.Error("the command succeeded")
			}
			if want := "waiting for " + server.URL + ": GET /version (1s)\n"; errs.String() != want {
				t.Errorf("got %q on stderr, want %q", errs, want)
			}
			if out.Len() > 0 {
				t.Errorf("got %q on stdout", out)
			}
		})
	}
}
