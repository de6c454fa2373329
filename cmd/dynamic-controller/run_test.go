package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
)

func TestCheckConnection_ReportsTheReason(t *testing.T) {
	const short, long = 50 * time.Millisecond, time.Minute
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		timeout time.Duration
		want    string // part of the error, or "" if none is expected
	}{
		"server with a version": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"gitVersion": "v1.37.2"}`)) }, long, "",
		},
		"server that forbids reading the version": {
			status(http.StatusForbidden), long, "",
		},
		"server that rejects the credentials": {
			status(http.StatusUnauthorized), long, "the server has asked for the client to provide credentials",
		},
		"server other than Kubernetes": {
			status(http.StatusNotFound), long, "the server could not find the requested resource",
		},
		"server that does not respond": {
			func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, short, "no response within 50ms",
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(test.handler)
			defer server.Close()
			cfg := &rest.Config{Host: server.URL, Transport: &http.Transport{DisableKeepAlives: true}}
			_, err := checkConnection(t.Context(), logr.Discard(), cfg, test.timeout)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("got error %v", err)
			case test.want != "" && (err == nil || !strings.HasSuffix(err.Error(), "cluster at "+server.URL+": "+test.want)):
				t.Errorf("got error %v, want %q and the address", err, test.want)
			}
		})
	}
}

func TestLogger_WritesOneLinePerMessage(t *testing.T) {
	var out bytes.Buffer
	log := testLogger(t, &out, logsapi.LoggingConfiguration{Format: formatJSON, Verbosity: 2})
	log.V(2).Info("Logged", "a", 1)
	log.V(3).Info("Not logged")
	klog.V(2).Infof("by %s", "client-go") // as older client-go code does
	klog.V(3).Info("Not logged")
	var got struct {
		Level, Caller, Msg string
		TS                 float64
		V, A               int
	}
	first, second, _ := strings.Cut(out.String(), "\n")
	if err := json.Unmarshal([]byte(first), &got); err != nil || got.Level != "debug" || got.V != 2 || got.A != 1 ||
		got.Msg != "Logged" || !strings.Contains(got.Caller, "run_test.go:") {
		t.Errorf("got %s, %v", first, err)
	}
	if age := time.Since(time.UnixMilli(int64(got.TS))); age < 0 || age > waitTimeout {
		t.Errorf("got the time %f", got.TS)
	}
	if !strings.Contains(second, `"logger":"client-go"`) || !strings.Contains(second, `"msg":"by client-go"`) ||
		strings.Count(second, "\n") != 1 {
		t.Errorf("got %s", second)
	}
}

func TestLogger_WritesTextLikeKubernetesComponents(t *testing.T) {
	var out bytes.Buffer
	modules := logsapi.VModuleConfiguration{{FilePattern: "run_test", Verbosity: 5}}
	log := testLogger(t, &out, logsapi.LoggingConfiguration{Format: formatText, VModule: modules})
	log.V(5).Info("Logged", "a", 1)
	log.V(6).Info("Not logged")
	if got := out.String(); !regexp.MustCompile(`^I\d{4} .* run_test.go:\d+\] "Logged" a=1\n$`).MatchString(got) {
		t.Errorf("got %q", got)
	}
}

// testLogger returns a logger. At the end of the test, klog is restored.
func testLogger(t *testing.T, w io.Writer, c logsapi.LoggingConfiguration) logr.Logger {
	t.Helper()
	log, err := newLogger(w, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := logsapi.ResetForTest(nil); err != nil {
			t.Error(err)
		}
		klog.StopFlushDaemon()
		klog.SetLogger(logr.Discard())
	})
	return log
}

func TestRestConfig_FindsTheKubeconfigLikeKubectl(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := func(name, server string) string {
		path := filepath.Join(dir, name)
		content := `{apiVersion: v1, kind: Config, current-context: a,
			clusters: [{name: a, cluster: {server: "` + server + `"}}, {name: b, cluster: {server: "` + server + `/b"}}],
			users: [{name: deputy, user: {as: somebody}}], contexts: [{name: a, context: {cluster: a}},
			{name: b, context: {cluster: b}}, {name: impersonating, context: {cluster: a, user: deputy}}]}`
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first, second := kubeconfig("first", "https://first"), kubeconfig("second", "https://second")
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // this test may run in a Pod

	for name, test := range map[string]struct {
		env     string
		options options
		want    string // host
		wantErr string // part of the error
	}{
		"flag":           {env: first, options: options{kubeconfig: second}, want: "https://second"},
		"environment":    {env: first, want: "https://first"},
		"context":        {env: first, options: options{context: "b"}, want: "https://first/b"},
		"no kubeconfig":  {env: filepath.Join(dir, "none"), wantErr: "no kubeconfig found in KUBECONFIG="},
		"missing file":   {options: options{kubeconfig: filepath.Join(dir, "none")}, wantErr: "no such file"},
		"malformed file": {options: options{kubeconfig: broken}, wantErr: "load the kubeconfig"},
		"impersonation": {
			env: first, options: options{context: "impersonating"}, wantErr: `the kubeconfig impersonates "somebody"`,
		},
		"missing context": {
			env: first, options: options{context: "c"}, wantErr: `context "c" does not exist`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", test.env)
			cfg, err := test.options.restConfig()
			switch {
			case test.wantErr != "":
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("got error %v, want %q", err, test.wantErr)
				}
			case err != nil:
				t.Error(err)
			case cfg.Host != test.want:
				t.Errorf("got %s, want %s", cfg.Host, test.want)
			}
		})
	}
}

// waitForSignalsEnv makes this test binary wait for signals instead of running tests.
const waitForSignalsEnv = "TEST_WAIT_FOR_SIGNALS"

// waitForSignals simulates a process with a hanging reconcile. It does not exit after the first signal.
func waitForSignals() {
	ctx, stop := withSignals(context.Background())
	defer stop()
	_, _ = os.Stdout.WriteString("waiting\n")
	<-ctx.Done()
	_, _ = os.Stdout.WriteString("shutting down\n")
	select {}
}

func TestSignals_SecondSignalTerminatesTheProcess(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), waitForSignalsEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timeout := time.AfterFunc(waitTimeout, func() { _ = cmd.Process.Kill() })
	defer timeout.Stop()
	for _, line := range []string{"waiting\n", "shutting down\n"} {
		got := make([]byte, len(line))
		if _, err := out.Read(got); err != nil || string(got) != line {
			t.Errorf("got %q, %v, want %q", got, err, line)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("got %v, want termination by SIGTERM", err)
	}
}
