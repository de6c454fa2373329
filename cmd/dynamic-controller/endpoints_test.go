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

// probeResults are set by the test.
type probeResults struct{ alive, ready error }

func (r *probeResults) Alive() error { return r.alive }
func (r *probeResults) Ready() error { return r.ready }

func TestProbes_ReportTheirResults(t *testing.T) {
	r := &probeResults{}
	h := healthHandler(r)
	check := func(path string, wantCode int, want string) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if got := w.Body.String(); w.Code != wantCode || !strings.Contains(got, want) {
			t.Errorf("%s: got %d, %q, want %d, %q", path, w.Code, got, wantCode, want)
		}
	}
	check("/livez", http.StatusOK, "ok")
	check("/readyz", http.StatusOK, "ok")
	r.alive = errors.New("hanging")
	check("/livez", http.StatusServiceUnavailable, "hanging")
	check("/readyz", http.StatusOK, "ok")
	r.alive, r.ready = nil, errors.New("not synced")
	check("/livez", http.StatusOK, "ok")
	check("/readyz", http.StatusServiceUnavailable, "not synced")
	check("/other", http.StatusNotFound, "")
}

func TestProbes_StandbyIsReady(t *testing.T) {
	a := newAPI(t)
	leader := startServing(t, a.cluster.Kubeconfig())
	standby := startReplica(t, a.cluster.Kubeconfig())
	for _, p := range []*process{leader, standby} {
		p.waitReady()
		if code, body := p.request(flagHealth, "/livez"); code != http.StatusOK {
			t.Errorf("/livez returned %d, %s", code, body)
		}
	}
	if n := len(standby.logged(line{Msg: "Started leading"})); n > 0 {
		t.Error("both replicas lead")
	}
}

func TestProbes_ReplicaWithoutPermissionsIsAliveAndNotReady(t *testing.T) {
	a := newAPI(t)
	p := startReplica(t, a.account("cannot-read"))
	p.waitLog(line{Level: "error", GVR: "blueprints"})
	if code, body := p.request(flagHealth, "/readyz"); code != http.StatusServiceUnavailable ||
		!strings.Contains(body, "definitions") {
		t.Errorf("got %d, %q", code, body)
	}
	if code, body := p.request(flagHealth, "/livez"); code != http.StatusOK {
		t.Errorf("/livez returned %d, %s", code, body)
	}
}

func TestMetrics_IncludeBlueprintsAndTheirTypes(t *testing.T) {
	a := newAPI(t)
	p := start(t, runArgs(a.cluster.Kubeconfig(), "--leader-elect=false",
		"--health-probe-bind-address", "0", "--metrics-bind-address", "127.0.0.1:0")...)
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	code, body := p.request(flagMetrics, "/metrics")
	for _, want := range []string{
		`dynamic_controller_objects{group="` + a.group + `",resource="websites",version="v1"} 1`,
		`dynamic_controller_type_state{group="platform.example.com",resource="blueprints",` +
			`state="Synced",version="v1alpha1"} 1`,
		"go_goroutines", "process_resident_memory_bytes",
	} {
		if code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("got %d, without %s in:\n%s", code, want, body)
		}
	}
	if n := len(p.logged(line{Msg: "Listening", Endpoint: flagHealth})); n > 0 {
		t.Error("the probes are served although they are disabled")
	}
	p.stop(syscall.SIGTERM)
}

func TestEndpoints_AddressInUseIsReported(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	a := newAPI(t)
	for _, flag := range []string{flagHealth, flagMetrics} {
		p := start(t, runArgs(a.cluster.Kubeconfig(), "--"+flagHealth, "0", "--"+flag, taken.Addr().String())...)
		if code := p.wait(); code != 1 || !strings.Contains(p.output(),
			"dynamic-controller: --"+flag+": listen tcp "+taken.Addr().String()+": bind: address already in use") {
			t.Errorf("got %d, %q", code, p.output())
		}
	}
}
