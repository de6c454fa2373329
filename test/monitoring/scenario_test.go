package monitoring

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"sigs.k8s.io/yaml"
)

// testFile is a file in the format of "promtool test rules". Promtool itself is not used: it imports all service
// discoveries of Prometheus, so that it takes minutes to build.
type testFile struct {
	RuleFiles          []string       `json:"rule_files"`
	EvaluationInterval model.Duration `json:"evaluation_interval"`
	Tests              []scenario     `json:"tests"`
}

type scenario struct {
	Name     string         `json:"name"`
	Interval model.Duration `json:"interval"`
	Series   []struct {
		Series string `json:"series"`
		Values string `json:"values"`
	} `json:"input_series"`
	Checks []check `json:"alert_rule_test"`
}

// check contains the expected firing alerts of one rule at one time.
type check struct {
	At     model.Duration `json:"eval_time"`
	Alert  string         `json:"alertname"`
	Firing []firing       `json:"exp_alerts"`
}

type firing struct {
	Labels      map[string]string `json:"exp_labels"`
	Annotations map[string]string `json:"exp_annotations"`
}

func loadScenarios(t testing.TB) []scenario {
	t.Helper()
	var file testFile
	if err := yaml.UnmarshalStrict(read(t, "monitoring/alerts_test.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	if time.Duration(file.EvaluationInterval) != evaluationInterval {
		t.Errorf("got the evaluation interval %s", file.EvaluationInterval)
	}
	return file.Tests
}

const evaluationInterval = time.Minute

// load returns the samples in the format of Prometheus' own tests.
func (s scenario) load() string {
	var text strings.Builder
	fmt.Fprintf(&text, "load %s\n", s.Interval)
	for _, series := range s.Series {
		fmt.Fprintf(&text, "  %s %s\n", series.Series, series.Values)
	}
	return text.String()
}

// loader provides parsed rules to a rule manager.
type loader struct{ groups *rulefmt.RuleGroups }

func (l loader) Load(string, bool, model.ValidationScheme) (*rulefmt.RuleGroups, []error) {
	return l.groups, nil
}

func (l loader) Parse(query string) (parser.Expr, error) { return promQL.ParseExpr(query) }

// run evaluates the rules as Prometheus does, and returns an error for each check that fails.
func (s scenario) run(ctx context.Context, groups *rulefmt.RuleGroups) (err error) {
	suite, err := promqltest.NewLazyLoader(s.load(), promqltest.LazyLoaderOpts{
		EnableAtModifier: true, EnableNegativeOffset: true,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, suite.Close()) }()
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(suite.QueryEngine(), suite.Storage()), Appendable: suite.Storage(), Context: ctx,
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, Logger: promslog.NewNopLogger(),
		GroupLoader: loader{groups}, Parser: promQL,
	})
	loaded, errs := manager.LoadGroups(evaluationInterval, labels.EmptyLabels(), "", nil, false, "alerts.yaml")
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	start := time.Unix(0, 0).UTC()
	end := slices.MaxFunc(s.Checks, func(a, b check) int { return int(a.At - b.At) })
	var failed []error
	for now := start; !now.After(start.Add(time.Duration(end.At))); now = now.Add(evaluationInterval) {
		suite.WithSamplesTill(now, func(err error) {
			failed = append(failed, err)
			for _, group := range loaded {
				group.Eval(ctx, now)
			}
		})
		for _, c := range s.Checks {
			if now.Equal(start.Add(time.Duration(c.At))) {
				failed = append(failed, c.compare(loaded))
			}
		}
	}
	return errors.Join(failed...)
}

// compare compares the alerts that are firing with the expected ones.
func (c check) compare(groups map[string]*rules.Group) error {
	found := false
	got := []firing{}
	for _, group := range groups {
		for _, rule := range group.AlertingRules() {
			if rule.LastError() != nil {
				return fmt.Errorf("%s: %w", rule.Name(), rule.LastError())
			}
			if rule.Name() != c.Alert {
				continue
			}
			found = true
			for _, alert := range rule.ActiveAlerts() {
				if alert.State == rules.StateFiring {
					got = append(got, firing{alert.Labels.Map(), alert.Annotations.Map()})
				}
			}
		}
	}
	if !found {
		return fmt.Errorf("unknown alert %s", c.Alert)
	}
	want := []firing{}
	for _, f := range c.Firing {
		expected := maps.Clone(f.Labels)
		expected[labels.AlertName] = c.Alert
		want = append(want, firing{expected, f.Annotations})
	}
	byLabels := func(a, b firing) int { return strings.Compare(fmt.Sprint(a.Labels), fmt.Sprint(b.Labels)) }
	slices.SortFunc(got, byLabels)
	slices.SortFunc(want, byLabels)
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("%s after %s (-want +got):\n%s", c.Alert, c.At, diff)
	}
	return nil
}
