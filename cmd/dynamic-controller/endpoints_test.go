package main

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
)

// condition is a health that the test decides on.
type condition struct{ alive, ready error }

func (c *condition) Alive() error { return c.alive }
func (c *condition) Ready() error { return c.ready }

func TestProbes(t *testing.T) {
	c := &condition{}
	h := healthHandler(c)
	ask := func(path string, wantCode int, want string) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if got := w.Body.String(); w.Code != wantCode || !strings.Contains(got, want) {
			t.Errorf("%s: got %d, %q, want %d, %q", path, w.Code, got, wantCode, want)
		}
	}
	ask("/livez", http.StatusOK, "ok")
	ask("/readyz", http.StatusOK, "ok")
	c.alive = errors.New("it hangs")
	ask("/livez", http.StatusServiceUnavailable, "it hangs")
	ask("/readyz", http.StatusOK, "ok")
	c.alive, c.ready = nil, errors.New("it is cold")
	ask("/livez", http.StatusOK, "ok")
	ask("/readyz", http.StatusServiceUnavailable, "it is cold")
	ask("/other", http.StatusNotFound, "")
}

func TestReplicasAreReadyWhetherTheyLeadOrNot(t *testing.T) {
	a := newAPI(t)
	leader, standby := startServing(t, a.cluster.Kubeconfig()), startReplica(t, a.cluster.Kubeconfig())
	for _, p := range []*process{leader, standby} {
		p.waitReady()
		if code, body := p.ask(flagHealth, "/livez"); code != http.StatusOK {
			t.Errorf("it is not alive: %d, %s", code, body)
		}
	}
	if n := len(standby.logged(line{Msg: "leading"})); n > 0 {
		t.Error("both lead")
	}
}

func TestAReplicaThatCannotReadDefinitionsIsAliveAndNotReady(t *testing.T) {
	a := newAPI(t)
	p := startReplica(t, a.account("cannot-read"))
	p.waitLog(line{Level: "error", GVR: "blueprints"})
	if code, body := p.ask(flagHealth, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "definitions") {
		t.Errorf("got %d, %q", code, body)
	}
	if code, body := p.ask(flagHealth, "/livez"); code != http.StatusOK {
		t.Errorf("it is not alive: %d, %s", code, body)
	}
}

func TestMetricsTellOfBlueprintsAndTheirTypes(t *testing.T) {
	a := newAPI(t)
	p := start(t, "run", "--kubeconfig", a.cluster.Kubeconfig(), "--leader-elect=false",
		"--health-probe-bind-address", "0", "--metrics-bind-address", "127.0.0.1:0")
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	code, body := p.ask(flagMetrics, "/metrics")
	for _, want := range []string{
		`dynamic_controller_objects{group="` + a.group + `",resource="websites",version="v1"} 1`,
		`dynamic_controller_type_state{group="platform.example.com",resource="blueprints",state="Synced",version="v1alpha1"} 1`,
		"go_goroutines", "process_resident_memory_bytes",
	} {
		if code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("got %d, and no %s in:\n%s", code, want, body)
		}
	}
	if n := len(p.logged(line{Msg: "listening", Endpoint: flagHealth})); n > 0 {
		t.Error("it listens for probes though it was told not to")
	}
	p.end(syscall.SIGTERM)
}

func TestAnAddressThatIsTakenIsSaid(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	a := newAPI(t)
	for _, flag := range []string{flagHealth, flagMetrics} {
		args := []string{"run", "--kubeconfig", a.cluster.Kubeconfig(), "--" + flagHealth, "0", "--" + flag, taken.Addr().String()}
		p := start(t, args...)
		if code := p.wait(); code != 1 || !strings.Contains(p.output(), "dynamic-controller: --"+flag+" "+taken.Addr().String()+": listen tcp") {
			t.Errorf("got %d, %q", code, p.output())
		}
	}
}
