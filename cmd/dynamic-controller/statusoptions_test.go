package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/yaml"
)

// execute runs a command in this process, and returns its output and its error.
func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	cmd := newCommand("dynamic-controller")
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// The flags for TLS and the token are meant for the replica.
func TestStatusCompletion_DoesNotUseFlagsOfTheReplicaForTheAPIServer(t *testing.T) {
	var requests atomic.Int64
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if strings.Contains(r.Header.Get("Authorization"), "given") {
			t.Errorf("%s: the token of the replica was sent to the API server", r.URL)
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := "{apiVersion: v1, kind: Config, current-context: it, " +
		"contexts: [{name: it, context: {cluster: it, user: it}}], " +
		"users: [{name: it, user: {token: own}}], clusters: [{name: it, cluster: {INSECURE server: '" + server.URL + "'}}]}"
	complete := func(insecure string, args ...string) {
		requests.Store(0)
		if err := os.WriteFile(kubeconfig, []byte(strings.Replace(text, "INSECURE", insecure, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append([]string{"__complete", "status", "--kubeconfig", kubeconfig}, args...)
		if out, err := execute(t, append(args, "--namespace", "")...); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	complete("", "--url", "https://127.0.0.1:1", "--insecure-skip-tls-verify")
	if n := requests.Load(); n > 0 {
		t.Errorf("%d requests were sent to an API server whose certificate was not verified", n)
	}
	complete("insecure-skip-tls-verify: true,", "--token", "given")
	if requests.Load() == 0 {
		t.Error("no requests were sent")
	}
}

func TestStatus_RejectsFlagsWithoutEffect(t *testing.T) {
	url := []string{"status", "--kubeconfig", "missing", "--url", "https://127.0.0.1:1", "--token", "given"}
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"impersonation":           {append(url, "--as", "admin"), "a replica does not impersonate users"},
		"impersonation of groups": {append(url, "--as-group", "admins"), "remove --as, --as-group and --as-uid"},
		"an authority with a URL": {append(url, "--replica-certificate-authority", "ca.crt"), "use --certificate-authority"},
		"an authority without a name": {[]string{"status", "--replica-certificate-authority", "ca.crt"},
			"must be set together"},
		"a name without an authority": {[]string{"status", "--replica-server-name", "a"}, "must be set together"},
		"a missing authority": {
			[]string{"status", "--replica-server-name", "a", "--replica-certificate-authority", "missing"},
			"--replica-certificate-authority: open missing",
		},
	} {
		if out, err := execute(t, test.args...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got error %v, %s", name, err, out)
		}
	}
}

func TestPrintAs_EscapesControlCharacters(t *testing.T) {
	const text = "\x1b[2J\u007f\u0080\u009b2J\u009f\u00a0é\n\u2028"
	for format, decode := range map[string]func([]byte, any) error{
		"json": json.Unmarshal,
		"yaml": func(data []byte, into any) error { return yaml.Unmarshal(data, into) },
	} {
		var out strings.Builder
		if err := printAs(&out, format, map[string]string{"a": text}, nil); err != nil {
			t.Fatal(err)
		}
		for _, r := range out.String() {
			if r < ' ' && r != '\n' || r >= 0x7f && r <= 0x9f {
				t.Errorf("%s: got %q", format, out.String())
			}
		}
		var got map[string]string
		if err := decode([]byte(out.String()), &got); err != nil || got["a"] != text {
			t.Errorf("%s: got %q, error %v", format, got, err)
		}
	}
}
