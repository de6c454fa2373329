package acceptance

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

func TestValidate_RejectsDisabledFeatures(t *testing.T) {
	collection := func(r *blueprint.Resource) { r.ForEach = []map[string]string{{"item": "${['a', 'b']}"}} }
	for name, test := range map[string]struct {
		change   func(*blueprint.Resource)
		disabled []Feature
		want     string // part of the message, or "" if the Blueprint is accepted
	}{
		"an unrelated Blueprint": {func(*blueprint.Resource) {}, []Feature{Collections, ExternalReferences}, ""},
		"an enabled feature":     {collection, []Feature{ExternalReferences}, ""},
		"a disabled feature": {
			collection, []Feature{Collections},
			"spec.resources[0].forEach: is disabled by the feature gate Collections of the platform",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := generations("Wheel")[0]
			b.Spec.Resources[0].Template["metadata"] = map[string]any{"name": "a"}
			test.change(&b.Spec.Resources[0])
			if len(b.Spec.Resources[0].ForEach) > 0 {
				b.Spec.Resources[0].Template["metadata"] = map[string]any{"name": "${item}"}
			}
			p, _ := newTestController([]*unstructured.Unstructured{asObject(t, b)}, nil, wheel)
			p.config.Disabled = test.disabled
			p.forgetDecisions()
			if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil && !isRequeue(err) {
				t.Fatal(err)
			}
			d, _ := p.registry.get(b.Name)
			switch {
			case test.want == "" && d.rejection != nil:
				t.Errorf("got rejection %+v", d.rejection)
			case test.want != "" && (d.rejection == nil || !strings.Contains(d.rejection.message, test.want)):
				t.Errorf("got rejection %+v, want %q", d.rejection, test.want)
			}
		})
	}
}

func TestDisabledFeatures_IncludeReferences(t *testing.T) {
	b := &blueprint.Blueprint{Spec: blueprint.Spec{Resources: []blueprint.Resource{
		{ID: "a"}, {ID: "b", ExternalRef: &blueprint.ExternalRef{}},
	}}}
	if got := disabledFeatures(b, []Feature{Collections}); len(got) > 0 {
		t.Errorf("got problems %v", got)
	}
	got := disabledFeatures(b, []Feature{ExternalReferences})
	if len(got) != 1 || got[0].Path != "spec.resources[1].externalRef" {
		t.Errorf("got problems %v", got)
	}
}

func TestLogChanges_LogsEachChangeOnce(t *testing.T) {
	served := &servedRevision{inputs: "1"}
	served.GVR = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "websites"}
	other := &servedRevision{inputs: "1"}
	refused := validation{rejection: &rejection{reasonInvalid, "broken"}}
	for name, test := range map[string]struct {
		before, next decision
		want         []string
	}{
		"nothing":            {},
		"served":             {next: decision{running: served}, want: []string{"Blueprint served"}},
		"still served":       {before: decision{running: served}, next: decision{running: served}},
		"rejected":           {next: decision{validation: refused}, want: []string{"Blueprint rejected"}},
		"still rejected":     {before: decision{validation: refused}, next: decision{validation: refused}},
		"deleted":            {before: decision{running: served}, want: []string{"Type released"}},
		"with another type":  {decision{running: served}, decision{running: other}, []string{"Type released"}},
		"an older revision":  {next: decision{olderProblem: "a"}, want: []string{"Older revision not loaded"}},
		"a stored revision":  {next: decision{loadRejection: refused.rejection}, want: []string{"Stored revision rejected"}},
		"rejected and known": {decision{}, decision{running: served, validation: refused}, []string{"Blueprint rejected"}},
	} {
		t.Run(name, func(t *testing.T) {
			var lines []string
			logChanges(funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}), "websites",
				test.before, test.next)
			got := strings.Join(lines, "\n")
			if len(lines) != len(test.want) || len(lines) == 1 && !strings.Contains(got, test.want[0]) {
				t.Errorf("logged %q, want %q", lines, test.want)
			}
		})
	}
}
