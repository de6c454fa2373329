package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// startUI starts the ui command, and returns the URL of its page.
func (s *statusScene) startUI(kubeconfig string, args ...string) (p *process, url string) {
	s.Helper()
	cmd := exec.Command(binary, append([]string{"ui", "--" + flagPlatformNamespace, metav1.NamespaceDefault,
		"--" + flagLeaseName, s.lease}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	p = startCommand(s.T, cmd)
	url, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		s.Fatalf("the command has printed no URL: %v, %s", err, p.output())
	}
	return p, strings.TrimSpace(url)
}

func TestUI_ServesThePageWithTheTokenOfTheUser(t *testing.T) {
	s := newStatusScene(t)
	get := func(url string) (int, string) {
		response, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	for name, args := range map[string][]string{
		"the leader":  nil,
		"the standby": {"--url", s.standby, "--tls-server-name", "localhost", "--certificate-authority", s.authority},
	} {
		t.Run(name, func(t *testing.T) {
			p, url := s.startUI(s.reader, args...)
			if code, body := get(url); code != http.StatusOK || !strings.Contains(body, "<title>dynamic-controller") {
				t.Errorf("%s: got %d, %.100q", url, code, body)
			}
			want := fmt.Sprintf(`"leading":%t`, args == nil)
			statusURL := strings.TrimSuffix(url, "/ui") + "/status"
			if code, body := get(statusURL); code != http.StatusOK || !strings.Contains(body, want) {
				t.Errorf("%s: got %d, %.200q, want %s", statusURL, code, body, want)
			}
			host := strings.Join(strings.Split(url, "/")[:3], "/")
			for _, path := range []string{"/ui", "/status", "/"} {
				if code, body := get(host + path); code != http.StatusNotFound || len(body) > 50 {
					t.Errorf("%s: got %d, %q", path, code, body)
				}
			}
			p.stop(syscall.SIGINT)
		})
	}
	t.Run("no permission", func(t *testing.T) {
		stranger := s.account("stranger")
		out, code := s.run(stranger, "ui", "LEADER")
		if want := `cannot get path "/status"`; code != 2 || !strings.Contains(out, want) {
			t.Errorf("got the exit code %d, want 2: %s", code, out)
		}
	})
}

// fakeReplica answers requests with an error, or with its name.
type fakeReplica struct {
	name   string
	err    error
	closed bool
}

func (f *fakeReplica) Get(context.Context, string) (*http.Response, error) {
	if f.err != nil {
		return nil, f.err
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(f.name))}, nil
}

func (f *fakeReplica) Close() { f.closed = true }

func TestReconnecting_ConnectsToTheNewLeader(t *testing.T) {
	old, successor := &fakeReplica{name: "old"}, &fakeReplica{name: "new"}
	var leader *fakeReplica
	connections := 0
	r := newReconnecting(func(context.Context) (replicaClient, error) {
		connections++
		if leader == nil {
			return (*fakeReplica)(nil), errors.New("no replica leads")
		}
		return leader, nil
	})
	get := func() string {
		response, err := r.get(t.Context())
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	for i, step := range []struct {
		prepare     func()
		want        string
		connections int
	}{
		{func() { leader = old }, "old", 1},
		{func() {}, "old", 1},
		{func() { leader, old.err = nil, errors.New("connection lost") }, "connection lost", 1},
		{func() {}, "no replica leads", 2},
		{func() { leader = successor }, "new", 3},
		{func() {}, "new", 3},
	} {
		step.prepare()
		if got := get(); got != step.want || connections != step.connections {
			t.Errorf("step %d: got %q after %d connections, want %q after %d", i, got, connections, step.want,
				step.connections)
		}
	}
	if r.close(); !old.closed || !successor.closed {
		t.Error("a client was not closed")
	}
}
