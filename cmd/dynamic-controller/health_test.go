package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apiserver/pkg/server/healthz"
)

func TestHealth_NamesTheFailedCheck(t *testing.T) {
	results := map[string]error{}
	of := func(names ...string) (checks []healthz.HealthChecker) {
		for _, name := range names {
			checks = append(checks, check(logr.Discard(), name, func() error { return results[name] }))
		}
		return checks
	}
	h := healthChecks{live: of("ping", "lease"), ready: of("ping", "caches"), other: of("webhook")}.handler()
	const ok, failed = http.StatusOK, http.StatusInternalServerError
	for _, step := range []struct {
		fails string
		path  string
		code  int
		want  string
	}{
		{"", "/livez", ok, "ok"},
		{"", "/readyz", ok, "ok"},
		{"", "/livez?verbose", ok, "[+]ping ok\n[+]lease ok\nlivez check passed"},
		{"", "/healthz?verbose", ok, "[+]ping ok\n[+]lease ok\n[+]caches ok\n[+]webhook ok\nhealthz check passed"},
		{"", "/livez/caches", http.StatusNotFound, ""},
		{"", "/other", http.StatusNotFound, ""},
		{"lease", "/livez", failed, "[+]ping ok\n[-]lease failed: reason withheld\nlivez check failed"},
		{"lease", "/livez/lease", failed, "lease does not work"},
		{"lease", "/livez/ping", ok, "ok"},
		{"lease", "/livez?exclude=lease", ok, "ok"},
		{"lease", "/readyz", ok, "ok"},
		{"lease", "/healthz", failed, "[-]lease failed"},
		{"caches", "/livez", ok, "ok"},
		{"caches", "/readyz", failed, "[-]caches failed"},
		{"caches", "/readyz/caches", failed, "caches does not work"},
		{"webhook", "/livez", ok, "ok"},
		{"webhook", "/readyz", ok, "ok"},
		{"webhook", "/healthz/webhook", failed, "webhook does not work"},
	} {
		clear(results)
		results[step.fails] = errors.New(step.fails + " does not work")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, step.path, nil))
		if got := w.Body.String(); w.Code != step.code || !strings.Contains(got, step.want) {
			t.Errorf("%q fails: %s returned %d, %q, want %d, %q", step.fails, step.path, w.Code, got, step.code, step.want)
		}
	}
}

func TestCheck_LogsEachChangeOfItsError(t *testing.T) {
	var logged []string
	log := funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{})
	var result error
	c := check(log, "caches", func() error { return result })
	one, other := errors.New("one"), errors.New("other")
	for i, step := range []struct {
		result error
		logs   bool
	}{{nil, false}, {one, true}, {one, false}, {other, true}, {nil, false}, {other, true}} {
		logged, result = nil, step.result
		if err := c.Check(nil); !errors.Is(err, step.result) {
			t.Errorf("step %d: got error %v", i, err)
		}
		want := fmt.Sprintf(`"level"=0 "msg"="Probe check failed" "check"="caches" "problem"="%v"`, step.result)
		if got := slices.Equal(logged, []string{want}); got != step.logs || len(logged) > 1 {
			t.Errorf("step %d: logged %q", i, logged)
		}
	}
}

// wantHealth fails the test unless the path of the probes returns the code and a body that contains want.
func (p *process) wantHealth(path string, code int, want string) {
	p.Helper()
	if got, body := p.request(flagHealth, path); got != code || !strings.Contains(body, want) {
		p.Errorf("%s returned %d, %q, want %d, %q", path, got, body, code, want)
	}
}

func TestProbes_StandbyIsReady(t *testing.T) {
	a := newAPI(t)
	leader := startServing(t, a.cluster.Kubeconfig())
	standby := startReplica(t, a.cluster.Kubeconfig())
	for _, p := range []*process{leader, standby} {
		p.waitReady()
		p.wantHealth("/livez", http.StatusOK, "ok")
	}
	if n := len(standby.logged(line{Msg: "Started leading"})); n > 0 {
		t.Error("both replicas lead")
	}
}

func TestProbes_ReplicaWithoutPermissionsIsAliveButNotReady(t *testing.T) {
	a := newAPI(t)
	p := startReplica(t, a.account("cannot-read"))
	p.waitLog(line{Level: "error", GVR: "blueprints"})
	p.wantHealth("/readyz", http.StatusInternalServerError, "[-]caches failed: reason withheld")
	p.wantHealth("/readyz/caches", http.StatusInternalServerError,
		"not all blueprints.platform.example.com have been read yet")
	p.wantHealth("/livez", http.StatusOK, "ok")
}

func TestHealth_HasNamedChecks(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig(), "--"+flagWebhook, "127.0.0.1:0")
	p.waitReady()
	p.wantHealth("/livez?verbose", http.StatusOK, "[+]ping ok\n[+]lease ok\nlivez check passed")
	p.wantHealth("/readyz?verbose", http.StatusOK,
		"[+]ping ok\n[+]restmapper ok\n[+]caches ok\n[+]shutdown ok\nreadyz check passed")
	p.wantHealth("/livez/lease", http.StatusOK, "ok")
	// The webhook's Secret does not exist.
	p.wantHealth("/healthz", http.StatusInternalServerError,
		"[+]ping ok\n[+]lease ok\n[+]restmapper ok\n[+]caches ok\n[+]shutdown ok\n[-]webhook failed")
	p.wantHealth("/healthz?exclude=webhook", http.StatusOK, "ok")
	p.wantHealth("/healthz/webhook", http.StatusInternalServerError, "certificate of the webhook has not been read yet")
}
