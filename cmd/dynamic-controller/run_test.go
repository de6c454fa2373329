package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
)

func TestReach(t *testing.T) {
	const short, long = 50 * time.Millisecond, time.Minute
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		timeout time.Duration
		want    string // in the error; empty for none
	}{
		"a server that tells its version": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"gitVersion": "v1.37.1"}`)) }, long, "",
		},
		"a server that tells it to few": {
			status(http.StatusForbidden), long, "",
		},
		"a server that does not know who asks": {
			status(http.StatusUnauthorized), long, "the server has asked for the client to provide credentials",
		},
		"a server that is no Kubernetes": {
			status(http.StatusNotFound), long, "the server could not find the requested resource",
		},
		"a server that does not answer": {
			func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, short, "no answer within 50ms",
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(test.handler)
			defer server.Close()
			cfg := &rest.Config{Host: server.URL, Transport: &http.Transport{DisableKeepAlives: true}}
			err := reach(t.Context(), logr.Discard(), cfg, test.timeout)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("got the error %v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), server.URL)):
				t.Errorf("got the error %v, want %q and the address", err, test.want)
			}
		})
	}
}

func TestNothingIsGivenUpByDefault(t *testing.T) {
	for args, want := range map[string]int{"": -1, "--queue-max-retries=3": 3} {
		var o options
		cmd := &cobra.Command{RunE: func(*cobra.Command, []string) error { return nil }}
		o.addFlags(cmd)
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.Execute(); err != nil || o.engine.QueueMaxRetries != want {
			t.Errorf("with %q an object is left after %d failures, want %d: %v", args, o.engine.QueueMaxRetries, want, err)
		}
	}
}

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log, err := logOptions{format: formatJSON, verbosity: 2}.logger(&out)
	if err != nil {
		t.Fatal(err)
	}
	log.V(2).Info("shown", "a", 1)
	log.V(3).Info("not shown")
	if got := out.String(); !strings.Contains(got, `"level":"debug"`) || !strings.HasSuffix(got, `"msg":"shown","a":1}`+"\n") || strings.Count(got, "\n") != 1 {
		t.Errorf("got %s", got)
	}
	if _, err := (logOptions{format: "xml"}).logger(&out); !errors.Is(err, errFormat) {
		t.Errorf("got the error %v", err)
	}
}

func TestTheClusterIsFoundAsKubectlFindsIt(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := func(name, server string) string {
		path := filepath.Join(dir, name)
		content := `{apiVersion: v1, kind: Config, current-context: a,
			clusters: [{name: a, cluster: {server: "` + server + `"}}, {name: b, cluster: {server: "` + server + `/b"}}],
			contexts: [{name: a, context: {cluster: a}}, {name: b, context: {cluster: b}}]}`
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
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // this may run in a Pod

	for name, test := range map[string]struct {
		env     string
		options options
		want    string // host
		wantErr string // in the error
	}{
		"by the flag":         {env: first, options: options{kubeconfig: second}, want: "https://second"},
		"by the environment":  {env: first, want: "https://first"},
		"by the context":      {env: first, options: options{context: "b"}, want: "https://first/b"},
		"not by nothing":      {env: filepath.Join(dir, "none"), wantErr: "no cluster to connect to"},
		"not by a wrong file": {options: options{kubeconfig: filepath.Join(dir, "none")}, wantErr: "no such file"},
		"not by a broken one": {options: options{kubeconfig: broken}, wantErr: "read the kubeconfig"},
		"not by a context that is not there": {
			env: first, options: options{context: "c"}, wantErr: `context "c" does not exist`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", test.env)
			cfg, err := test.options.restConfig()
			switch {
			case test.wantErr != "":
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("got the error %v, want %q", err, test.wantErr)
				}
			case err != nil:
				t.Error(err)
			case cfg.Host != test.want:
				t.Errorf("got %s, want %s", cfg.Host, test.want)
			}
		})
	}
}

// untilSignalEnv makes this test binary wait for signals instead of testing.
const untilSignalEnv = "TEST_UNTIL_SIGNAL"

// waitForever does not end with the first signal, as a process whose reconciles hang.
func waitForever() {
	ctx, stop := untilSignal(context.Background())
	defer stop()
	_, _ = os.Stdout.WriteString("waiting\n")
	<-ctx.Done()
	_, _ = os.Stdout.WriteString("ending\n")
	select {}
}

func TestASecondSignalEndsTheProcessAtOnce(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), untilSignalEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timeout := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timeout.Stop()
	for _, line := range []string{"waiting\n", "ending\n"} {
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
		t.Errorf("ended with %v, want SIGTERM", err)
	}
}
