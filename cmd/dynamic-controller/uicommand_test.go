package main

import (
	"bufio"
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

// startUI starts the command ui, and returns the URL of its page.
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
