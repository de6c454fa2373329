package monitoring

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

// targetLabels are the labels that Prometheus or its configuration adds to all series.
var targetLabels = []string{"job", "namespace", "instance"}

// metrics contains the labels of each metric.
type metrics map[string][]string

// loadMetrics returns the metrics that the platform exports. A test in cmd/dynamic-controller compares the file with
// the metrics of a running process.
func loadMetrics(t testing.TB) metrics {
	t.Helper()
	// Prometheus creates these.
	m := metrics{"up": nil, "ALERTS": {"alertname", "alertstate", "severity"}}
	for line := range strings.Lines(string(read(t, "monitoring/metrics.txt"))) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 2 {
			t.Fatalf("malformed line %q", line)
		}
		name, kind, names := fields[0], fields[1], fields[2:]
		switch kind {
		case "histogram":
			m[name+"_bucket"] = append(slices.Clone(names), model.BucketLabel)
			m[name+"_sum"], m[name+"_count"] = names, names
		case "summary":
			m[name] = append(slices.Clone(names), model.QuantileLabel)
			m[name+"_sum"], m[name+"_count"] = names, names
		default:
			m[name] = names
		}
	}
	return m
}

// check returns an error if a query is invalid, or uses metrics or labels that do not exist.
func (m metrics) check(query string) error {
	expr, err := promQL.ParseExpr(query)
	if err != nil {
		return err
	}
	available := slices.Clone(targetLabels)
	var grouped []string
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			own, ok := m[n.Name]
			if !ok {
				err = fmt.Errorf("unknown metric %q", n.Name)
			}
			available = append(available, own...)
			for _, matcher := range n.LabelMatchers {
				known := matcher.Name == model.MetricNameLabel || slices.Contains(own, matcher.Name) ||
					slices.Contains(targetLabels, matcher.Name)
				if !known {
					err = fmt.Errorf("unknown label %s of %s", matcher.Name, n.Name)
				}
			}
		case *parser.AggregateExpr:
			grouped = append(grouped, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				grouped = append(grouped, n.VectorMatching.MatchingLabels...)
				grouped = append(grouped, n.VectorMatching.Include...)
			}
		}
		return nil
	})
	for _, name := range grouped {
		if !slices.Contains(available, name) {
			err = fmt.Errorf("no metric of the query has the label %s", name)
		}
	}
	return err
}

func TestCheck_ReportsUnknownMetricsAndLabels(t *testing.T) {
	m := metrics{"known": {"state"}}
	for query, valid := range map[string]bool{
		`sum by (state, job) (known{state="a"})`:          true,
		`sum by (state, job) (rate(known{state="a"}[5m])`: false,
		`unknown`:                                   false,
		`known{other="a"}`:                          false,
		`sum by (other) (known)`:                    false,
		`known and on (other) known`:                false,
		`known * on (job) group_left (other) known`: false,
	} {
		if err := m.check(query); (err == nil) != valid {
			t.Errorf("%s: got %v", query, err)
		}
	}
}

func TestAlerts_UseExportedMetrics(t *testing.T) {
	exported := loadMetrics(t)
	for _, group := range loadRules(t).Groups {
		for _, rule := range group.Rules {
			if err := exported.check(rule.Expr); err != nil {
				t.Errorf("%s: %v", rule.Alert, err)
			}
		}
	}
}
