package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/tracing/tracingtest"
)

// The second replica exports spans and rejects Blueprints with disabled features, as set in its configuration file. The
// first and the third replica have the defaults.
func TestConfig_TracingAndFeatureGates(t *testing.T) {
	a := newAPI(t)
	first := startServing(t, a.cluster.Kubeconfig())
	a.apply(teams)
	a.apply(stalls)
	a.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: shared}, data: {text: rose}}")
	a.apply(team("", "ann"))
	a.wait("GROUP/v1", "Team", "t", is("Ready", "True"))
	a.waitBlueprint("stalls", is("Accepted", "True"))
	first.kill()

	collector := tracingtest.Start(t)
	file := writeConfig(t, fmt.Sprintf("tracing: {endpoint: %q, samplingRatePerMillion: 1000000}\n"+
		"featureGates: {Collections: false, ExternalReferences: false}\n", collector.Endpoint))
	second := startServing(t, a.cluster.Kubeconfig(), append([]string{"--config", file}, localMetrics...)...)
	const disabled = ": is disabled by the platform's feature gate"
	a.waitBlueprint("teams", is("Accepted", "False", "spec.resources[0].forEach"+disabled))
	a.waitBlueprint("stalls", is("Accepted", "False", "spec.resources[0].externalRef"+disabled))
	second.wantMetrics(`kubernetes_feature_enabled{name="Collections",stage="BETA"} 0`)
	// Deletions are processed.
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.delete("GROUP/v1", "Team", "t")
	a.waitGone("GROUP/v1", "Team", "t")
	a.waitGone("v1", "ConfigMap", "t-summary")
	second.stop(syscall.SIGTERM) // exports the remaining spans
	checkSpans(t, a, second, collector)

	startServing(t, a.cluster.Kubeconfig())
	for _, name := range []string{"teams", "stalls"} {
		a.waitBlueprint(name, is("Accepted", "True"), is("Serving", "True"))
	}
}

// checkSpans checks the spans of the instance flowers.
func checkSpans(t *testing.T, a *api, p *process, collector *tracingtest.Collector) {
	t.Helper()
	applied := false
	for _, span := range collector.Spans() {
		if name := span.Attributes["url.full"]; strings.Contains(name, "/leases/") || strings.Contains(name, "watch=") ||
			strings.Contains(name, "roses") {
			t.Errorf("got a span for %s", name)
		}
		if span.GetName() != "reconcile websites."+a.group || span.Attributes["dynamiccontroller.object.name"] != "flowers" {
			continue
		}
		for key, want := range map[string]string{
			"service.name": "dynamic-controller", "k8s.namespace.name": a.namespace, "dynamiccontroller.term": "1",
		} {
			if got := span.Attributes[key]; got != want {
				t.Errorf("%s: got %q, want %q", key, got, want)
			}
		}
		for _, child := range collector.Children(span) {
			if child.GetName() == "PATCH /api/v1/namespaces/{namespace}/configmaps/{name}" &&
				child.Attributes["http.response.status_code"] == "201" {
				applied = true
			}
		}
	}
	if !applied {
		t.Error("no reconcile of the instance has a request that created a ConfigMap")
	}
	served := p.logged(line{Msg: "Blueprint served", Type: "websites", Term: 1, ReconcileID: "-"})
	if len(served) != 1 || served[0].TraceID == "" {
		t.Errorf("got the log lines %+v", served)
	}
}

// A collector that cannot be reached affects neither reconciling nor the shutdown.
func TestTracing_CollectorThatIsDown(t *testing.T) {
	a := newAPI(t)
	file := writeConfig(t, `tracing: {endpoint: "127.0.0.1:1", samplingRatePerMillion: 1000000}`)
	p := startServing(t, a.cluster.Kubeconfig(), "--config", file)
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	if took := p.stop(syscall.SIGTERM); took > waitTimeout/2 {
		t.Errorf("the shutdown took %s", took)
	}
	if len(p.logged(line{Msg: "Shutdown complete"})) != 1 {
		t.Error("the replica has not shut down")
	}
}
