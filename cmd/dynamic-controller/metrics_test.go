package main

import (
	"errors"
	"flag"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/restmapper"
)

// localMetrics are arguments that serve the metrics without TLS.
var localMetrics = []string{"--" + flagMetrics, "127.0.0.1:0", "--" + flagSecure + "=false"}

// metrics returns the response of /metrics.
func (p *process) metrics() string {
	p.Helper()
	code, body := p.request(flagMetrics, "/metrics")
	if code != http.StatusOK {
		p.Fatalf("got %d, %s", code, body)
	}
	return body
}

// wantMetrics waits until /metrics contains all of the texts.
func (p *process) wantMetrics(texts ...string) {
	p.Helper()
	eventually(p.T, func() error {
		body := p.metrics()
		for _, text := range texts {
			if !strings.Contains(body, text) {
				return errors.New(text + " is missing in:\n" + body)
			}
		}
		return nil
	})
}

func TestMetrics_IncludeBlueprintsAndTheirTypes(t *testing.T) {
	a := newAPI(t)
	args := slices.Concat(localMetrics, a.webhookArgs(), []string{"--" + flagQPS, "1000", "--" + flagFenceOnServer})
	p := startServing(t, a.account(a.platformName(), everything()), args...)
	a.installWebhookOf(p)
	p.waitLog(line{Msg: "Webhook certificate loaded"})
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	group := `group="` + a.group + `"`
	labels := group + `,resource="websites"`
	p.wantMetrics(
		`dynamiccontroller_objects{`+labels+`,version="v1"} 1`,
		`dynamiccontroller_type_state{group="platform.example.com",resource="blueprints",state="Synced",`+
			`version="v1alpha1"} 1`,
		`dynamiccontroller_secondary_watches{`+labels+`,state="Synced",version="v1"} `,
		`dynamiccontroller_blueprints{state="Served"} 1`, `dynamiccontroller_blueprints{state="Rejected"} 0`,
		`dynamiccontroller_reconciles_total{`+group, `dynamiccontroller_queue_items{`+group,
		"dynamiccontroller_leading 1", "dynamiccontroller_term 1", `leader_election_master_status{name="`+leaseOf(t)+`"} 1`,
		`dynamiccontroller_mapper_lag_seconds{source="CRDs"} 0`, "dynamiccontroller_server_fence_enforced 0",
		"go_goroutines", "process_resident_memory_bytes",
	)
	body := p.metrics()
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("got the problems %v, %v", problems, err)
	}
	checkDocumented(t, body)
	checkMonitored(t, body)

	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	eventually(t, func() error {
		for series := range strings.Lines(p.metrics()) {
			if strings.Contains(series, group) {
				return errors.New("the type is no longer served, but has the series " + series)
			}
		}
		return nil
	})
	p.stop(syscall.SIGTERM)
}

// checkDocumented compares the metrics with the table in the documentation for operators. A name in the table can end
// with an asterisk.
func checkDocumented(t *testing.T, body string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## Metrics\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+\\*?)`").FindAllStringSubmatch(table, -1) {
		documented = append(documented, row[1])
	}
	used := map[string]bool{}
	for _, family := range regexp.MustCompile("(?m)^# TYPE ([a-z_]+) ").FindAllStringSubmatch(body, -1) {
		i := slices.IndexFunc(documented, func(name string) bool {
			prefix, isPattern := strings.CutSuffix(name, "*")
			return name == family[1] || isPattern && strings.HasPrefix(family[1], prefix)
		})
		if i < 0 {
			t.Errorf("%s is not documented", family[1])
			continue
		}
		used[documented[i]] = true
	}
	for _, name := range documented {
		if !used[name] {
			t.Errorf("%s is documented, but does not exist", name)
		}
	}
}

// updateMetrics replaces the list of metrics that the alerts and the dashboard can use.
var updateMetrics = flag.Bool("update-metrics", false, "update monitoring/metrics.txt")

const monitoredMetrics = "../../monitoring/metrics.txt"

// checkMonitored compares the metrics with the list that the alert and dashboard tests use. Go and client-go metrics
// that are not on the list are accepted, because other versions of them can add metrics.
func checkMonitored(t *testing.T, body string) {
	t.Helper()
	exported := exportedMetrics(body)
	if *updateMetrics {
		text := "# Metrics with types and labels. To update: go test -C cmd/dynamic-controller -run TestMetrics_Include " +
			"-update-metrics\n" + strings.Join(exported, "\n") + "\n"
		if err := os.WriteFile(monitoredMetrics, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(monitoredMetrics)
	if err != nil {
		t.Fatal(err)
	}
	listed := strings.Split(strings.TrimSpace(string(text)), "\n")[1:]
	for _, metric := range listed {
		if !slices.Contains(exported, metric) {
			t.Errorf("%s is in %s, but is not exported", metric, monitoredMetrics)
		}
	}
	for _, metric := range exported {
		if strings.HasPrefix(metric, "dynamiccontroller_") && !slices.Contains(listed, metric) {
			t.Errorf("%s is exported, but is not in %s", metric, monitoredMetrics)
		}
	}
}

var (
	metricType  = regexp.MustCompile(`^# TYPE (\w+) (\w+)`)
	metricLabel = regexp.MustCompile(`(\w+)="`)
)

// exportedMetrics returns the name, the type and the labels of each metric. It omits metrics that exist only after a
// retry.
func exportedMetrics(body string) []string {
	var metrics []string
	metric := ""
	for text := range strings.Lines(body) {
		if match := metricType.FindStringSubmatch(text); match != nil {
			metric = match[1] + " " + match[2]
		}
		if metric == "" || strings.HasPrefix(text, "#") {
			continue
		}
		// The first series of the metric.
		for _, label := range metricLabel.FindAllStringSubmatch(text, -1) {
			if label[1] != "le" && label[1] != "quantile" { // part of the type
				metric += " " + label[1]
			}
		}
		if !strings.HasPrefix(metric, "rest_client_request_retries_total") {
			metrics = append(metrics, metric)
		}
		metric = ""
	}
	return metrics
}

// The values of labels in alerts and panels must exist, because a wrong value selects nothing.
func TestMonitoring_UsesExistingLabelValues(t *testing.T) {
	text, err := os.ReadFile("../../monitoring/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	panels, err := os.ReadFile("../../monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	values := map[string][]string{
		"state": {
			"Stopped", "Syncing", "Synced", "NotFound", "Forbidden", "Failing", // of watches
			"Served", "Waiting", "Unknown", "Rejected", "Deleting", // of Blueprints
		},
		"outcome": {
			string(dynamiccontroller.OutcomeFailure), string(dynamiccontroller.OutcomePanic),
			string(dynamiccontroller.OutcomeParked), string(dynamiccontroller.OutcomeTerminal),
		},
		"method": {http.MethodGet},
	}
	used := 0
	matcher := regexp.MustCompile(`\b(state|outcome|method|lane|source)[!=]~?"([^"]*)"`)
	all := string(text) + strings.ReplaceAll(string(panels), `\"`, `"`)
	for _, match := range matcher.FindAllStringSubmatch(all, -1) {
		for _, value := range strings.Split(match[2], "|") {
			used++
			if !slices.Contains(values[match[1]], value) {
				t.Errorf("%s: unknown value %q", match[0], value)
			}
		}
	}
	if used < 10 {
		t.Errorf("found only %d values", used)
	}
}

func TestMetrics_WithoutTypeLabels(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig(), append(localMetrics, "--"+flagTypeLabels+"=false")...)
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	p.wantMetrics("dynamiccontroller_objects 2", `dynamiccontroller_type_state{state="Synced"} 2`)
	if body := p.metrics(); strings.Contains(body, "resource=") {
		t.Errorf("a metric has the label resource:\n%s", body)
	}
}

func TestMetrics_StandbyDoesNotLead(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	p := startReplica(t, a.cluster.Kubeconfig(), localMetrics...)
	p.waitReady()
	p.wantMetrics("dynamiccontroller_leading 0", "dynamiccontroller_term 0")
}

type mapperErrors []restmapper.Error

func (e mapperErrors) Errors() []restmapper.Error { return e }

func TestMapperMetrics_ReportTheOldestFailureOfEachSource(t *testing.T) {
	hour := func(n int) time.Time { return time.Now().Add(-time.Duration(n) * time.Hour) }
	m := &mapperMetrics{mapperErrors{
		{Source: restmapper.SourceDiscovery, Since: hour(1)}, {Source: restmapper.SourceDiscovery, Since: hour(3)},
		{Source: restmapper.SourceDiscovery, Since: hour(2)}, {Source: restmapper.SourceCRDs, Since: hour(1)},
	}, func() int64 { return 7 }}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, family := range families {
		for _, series := range family.GetMetric() {
			source := ""
			for _, label := range series.GetLabel() {
				source = label.GetValue()
			}
			got[source] = int(series.GetGauge().GetValue())
		}
	}
	const hours = 3600
	if got["Discovery"] != 3*hours || got["CRDs"] != hours || got["APIServices"] != 0 || got[""] != 7 ||
		len(got) != 4 {
		t.Errorf("got %v", got)
	}
}
