package handlers

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func TestConfig_ErrorListsAllInvalidFields(t *testing.T) {
	server, selector := newFakeServer(newWidget()), labels.SelectorFromSet(labels.Set{"app": "first"})
	nothing := func(context.Context, dynamiccontroller.ObjectIdentifiers, *unstructured.Unstructured) error {
		return nil
	}
	claimer := func(config ClaimerConfig) error { _, err := NewClaimer(config); return err }
	conditions := func(config ConditionsConfig) error { _, err := NewConditions(config); return err }
	expectations := func(config ExpectationsConfig) error { _, err := NewExpectations(config); return err }
	finalizer := func(config FinalizerConfig) error { return Finalizer(config)(t.Context(), first, newWidget()) }
	for name, c := range map[string]struct {
		err  error
		want []string // the fields, in the order of their errors
	}{
		"an empty ClaimerConfig": {claimer(ClaimerConfig{}), []string{
			"ClaimerConfig.Client: ", "ClaimerConfig.FieldManager: ", "ClaimerConfig.Selector: ",
		}},
		"a ClaimerConfig with a selector that matches everything": {
			claimer(ClaimerConfig{Client: server, FieldManager: "m", Selector: labels.Everything()}),
			[]string{"ClaimerConfig.Selector: "},
		},
		"a ClaimerConfig": {claimer(ClaimerConfig{Client: server, FieldManager: "m", Selector: selector}), nil},
		"an empty ConditionsConfig": {conditions(ConditionsConfig{}), []string{
			"ConditionsConfig.Client: ", "ConditionsConfig.FieldManager: ",
		}},
		"a ConditionsConfig": {conditions(ConditionsConfig{Client: server, FieldManager: "m"}), nil},
		"an ExpectationsConfig with a negative timeout": {
			expectations(ExpectationsConfig{Timeout: -time.Second}), []string{
				"ExpectationsConfig.Client: ", "ExpectationsConfig.Cache: ", "ExpectationsConfig.Timeout -1s: ",
			},
		},
		"an ExpectationsConfig": {expectations(ExpectationsConfig{Client: server, Cache: Live(server)}), nil},
		"an empty FinalizerConfig": {finalizer(FinalizerConfig{}), []string{
			"FinalizerConfig.Client: ", `FinalizerConfig.Name "": `,
			"FinalizerConfig.Reconcile: ", "FinalizerConfig.Cleanup: ",
		}},
		"a FinalizerConfig without a domain": {
			finalizer(FinalizerConfig{Client: server, Name: "cleanup", Reconcile: nothing, Cleanup: nothing}),
			[]string{`FinalizerConfig.Name "cleanup": `},
		},
		"a FinalizerConfig": {
			finalizer(FinalizerConfig{Client: server, Name: "example.com/cleanup", Reconcile: nothing, Cleanup: nothing}), nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var problems []string
			if c.err != nil {
				problems = strings.Split(strings.TrimPrefix(c.err.Error(), "terminal: "), "\n")
			}
			if len(problems) != len(c.want) {
				t.Fatalf("got the errors %q, want those of %q", problems, c.want)
			}
			for i, problem := range problems {
				if !strings.HasPrefix(problem, "handlers: "+c.want[i]) {
					t.Errorf("got the error %q, want that of %q", problem, c.want[i])
				}
			}
		})
	}
}
