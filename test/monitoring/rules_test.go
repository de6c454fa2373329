package monitoring

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

func TestAlerts_FireAsDescribedByTheScenarios(t *testing.T) {
	groups := loadRules(t)
	for _, s := range loadScenarios(t) {
		t.Run(s.Name, func(t *testing.T) {
			if err := s.run(t.Context(), groups); err != nil {
				t.Error(err)
			}
		})
	}
}

// changed returns the rules with another expression and hold duration for one alert, which is the only rule.
func changed(rule rulefmt.Rule, expr string, hold time.Duration) *rulefmt.RuleGroups {
	rule.Expr, rule.For = expr, model.Duration(hold)
	return &rulefmt.RuleGroups{Groups: []rulefmt.RuleGroup{{Name: "changed", Rules: []rulefmt.Rule{rule}}}}
}

// Each alert has a scenario in which it fires, and one in which it does not. At least one scenario fails if the alert
// waits longer, if a number in its expression is larger, or if the expression selects nothing.
func TestAlerts_ScenariosDetectChangedRules(t *testing.T) {
	scenarios := loadScenarios(t)
	for _, group := range loadRules(t).Groups {
		for _, rule := range group.Rules {
			t.Run(rule.Alert, func(t *testing.T) {
				own, fires, silent := scenariosOf(scenarios, rule.Alert)
				if !fires || !silent {
					t.Errorf("the alert fires in a scenario: %t, and does not fire in another one: %t", fires, silent)
				}
				for name, groups := range changes(t, rule) {
					fails := func(s scenario) bool { return s.run(t.Context(), groups) != nil }
					if !slices.ContainsFunc(own, fails) {
						t.Errorf("no scenario fails with %s", name)
					}
				}
			})
		}
	}
}

// scenariosOf returns the scenarios about an alert, reduced to the checks of the alert. It reports whether the alert
// fires in one of them, and whether there is one in which it never fires.
func scenariosOf(scenarios []scenario, alert string) (own []scenario, fires, silent bool) {
	for _, s := range scenarios {
		var checks []check
		isFiring := false
		for _, c := range s.Checks {
			if c.Alert == alert {
				checks = append(checks, c)
				isFiring = isFiring || len(c.Firing) > 0
			}
		}
		if len(checks) == 0 || strings.HasPrefix(s.Name, "two healthy replicas") {
			continue
		}
		s.Checks = checks
		own, fires, silent = append(own, s), fires || isFiring, silent || !isFiring
	}
	return own, fires, silent
}

// changes returns changed rules by the description of the change.
func changes(t *testing.T, rule rulefmt.Rule) map[string]*rulefmt.RuleGroups {
	t.Helper()
	hold := time.Duration(rule.For)
	all := map[string]*rulefmt.RuleGroups{
		"a longer duration":                  changed(rule, rule.Expr, 2*hold),
		"an expression that selects nothing": changed(rule, "("+rule.Expr+") and on () vector(0) > 0", hold),
	}
	for i := range numbers(t, rule.Expr) {
		// Parse the expression again, because the number is changed in place.
		expr, err := promQL.ParseExpr(rule.Expr)
		if err != nil {
			t.Fatal(err)
		}
		n := numbersIn(expr)[i]
		name := fmt.Sprintf("a larger value instead of %v for number %d of the expression", n.Val, i)
		n.Val = 3*n.Val + 2
		all[name] = changed(rule, expr.String(), hold)
	}
	return all
}

func numbers(t *testing.T, query string) []*parser.NumberLiteral {
	t.Helper()
	expr, err := promQL.ParseExpr(query)
	if err != nil {
		t.Fatal(err)
	}
	return numbersIn(expr)
}

func numbersIn(expr parser.Expr) (found []*parser.NumberLiteral) {
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if n, ok := node.(*parser.NumberLiteral); ok {
			found = append(found, n)
		}
		return nil
	})
	return found
}

const runbooks = "https://github.com/dynamic-controller/engine/blob/main/docs/alerts.md#"

// Each alert has the fields that an on-call engineer needs, including a runbook.
func TestAlerts_AreComplete(t *testing.T) {
	docs := string(read(t, "docs/alerts.md"))
	documented := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^### (\w+)$`).FindAllStringSubmatch(docs, -1) {
		documented[match[1]] = true
	}
	for _, group := range loadRules(t).Groups {
		for _, rule := range group.Rules {
			if severity := rule.Labels["severity"]; severity != "critical" && severity != "warning" {
				t.Errorf("%s: got the severity %q", rule.Alert, severity)
			}
			if rule.For == 0 || rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
				t.Errorf("%s: the duration, the summary or the description is missing", rule.Alert)
			}
			if url := rule.Annotations["runbook_url"]; url != runbooks+strings.ToLower(rule.Alert) {
				t.Errorf("%s: got the runbook %s", rule.Alert, url)
			}
			if !documented[rule.Alert] {
				t.Errorf("%s: docs/alerts.md has no section about it", rule.Alert)
			}
			delete(documented, rule.Alert)
			row := "| [" + rule.Alert + "](#" + strings.ToLower(rule.Alert) + ") | " + rule.Labels["severity"] + " |"
			if !strings.Contains(docs, row) {
				t.Errorf("%s: docs/alerts.md has no row %s", rule.Alert, row)
			}
		}
	}
	for name := range documented {
		t.Errorf("docs/alerts.md describes %s, which does not exist", name)
	}
}
