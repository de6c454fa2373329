package blueprint_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// The status reads the objects of the lookup. It ignores an object that is marked as a child of the reference.
func TestReport_references(t *testing.T) {
	const forged = "{apiVersion: v1, kind: ConfigMap, metadata: {name: shared, namespace: shop}, data: {text: forged}}"
	compiled := compile(t, reporting(`status: {text: "${settings.data.text}", count: "${size(found)}"}
    conditions: [{type: Open, status: "settings.data.mode == 'on'"}]`,
		strings.Replace(referring("{name: shared}"), "id: settings", "id: settings, readyWhen: ['false']", 1)+`
    - {id: found, externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {selector: {}}}}
    - {id: page, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}`),
		blueprint.Options{})
	for reason, c := range map[string]struct {
		result any
		want   string
	}{
		"an object that is not ready":   {[]string{settings}, "map[count:1 text:roses] True"},
		"an object that does not exist": {nil, "map[count:1 text:<nil>] Unknown"},
		"an object that cannot be read": {errors.New("no answer"), "no report"},
		"an object that cannot be used": {
			&blueprint.UnusableError{Reason: "is too large"}, "map[count:1 text:<nil>] Unknown",
		},
	} {
		s := stepWith(t, compiled, &lookups{results: map[string]any{"settings": c.result, "found": []string{settings}}},
			map[string]*unstructured.Unstructured{"settings": object(forged)})
		got := "no report"
		if s.Report != nil {
			got = fmt.Sprint(s.Report.Fields, " ", s.Report.Conditions[0].Status)
		}
		if got != c.want || s.Ready {
			t.Errorf("%s: got %s, ready %t", reason, got, s.Ready)
		}
	}
}

func TestReport_keptWhenReferenceCannotBeRead(t *testing.T) {
	compiled := compile(t, reporting(`status: {pages: "${size(pages)}"}`, `
    - {id: found, externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {selector: {}}}}
    - {id: other, externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {selector: {}}}}
    - {id: names, forEach: [{f: "${found}"}], readyWhen: ["true"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${f.metadata.name}-x"}}}
    - {id: pages, forEach: [{item: "${names}"}], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${item.metadata.name}-y"}}}`), blueprint.Options{})
	for failed, want := range map[string]bool{"found": false, "other": true} {
		results := map[string]any{"found": []string{}, "other": []string{}}
		results[failed] = errors.New("no answer")
		if s := stepWith(t, compiled, &lookups{results: results}, nil); (s.Report != nil) != want {
			t.Errorf("%s cannot be read: got report %+v", failed, s.Report)
		}
	}
}

func TestCompile_statusMustNotReadReferencedSecrets(t *testing.T) {
	const vault = `
    - {id: vault, externalRef: {apiVersion: v1, kind: Secret, metadata: {selector: {}}}}`
	for fields, want := range map[string]string{
		`status: {a: "${vault[0].metadata.name}"}`:                        "",
		`status: {a: "${vault[0].data.k}"}`:                               "spec.type.status.a: ${vault[0].data.k}: must not",
		`status: {a: "${vault.map(v, v.data.k)}"}`:                        "spec.type.status.a: ",
		`conditions: [{type: A, status: "vault[0].data.k == 'hunter2'"}]`: "spec.type.conditions[0].status: ",
	} {
		got := strings.Join(problemsOf(t, reporting(fields, vault), blueprint.Options{}), "\n")
		if want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, want %q", fields, got, want)
		}
	}
}

func TestStep_withoutLookup(t *testing.T) {
	s := step(t, compile(t, ofWebsites(referring("{name: a}")), blueprint.Options{}), flowers, nil)
	if got := summary(s); !strings.Contains(got, "unready [settings: existing objects cannot be looked up here]") {
		t.Errorf("got %s", got)
	}
}

func TestStep_hidesDataOfReferencedSecrets(t *testing.T) {
	vault := []string{"{apiVersion: v1, kind: Secret, metadata: {name: vault}, data: {password: hunter2}}"}
	for reason, c := range map[string]struct{ metadata, resource string }{
		"a template": {"{name: vault}", `{id: page, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a},
        data: {k: "${string(int(vault.data.password))}"}}}`},
		"a template that reads a list": {"{selector: {}}", `{id: page, template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: a}, data: {k: "${string(int(vault[0].data.password))}"}}}`},
		"includeWhen": {"{name: vault}", `{id: page, includeWhen: ["int(vault.data.password) > 0"],
        template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}`},
	} {
		compiled := compile(t, ofWebsites(`
    - {id: vault, externalRef: {apiVersion: v1, kind: Secret, metadata: `+c.metadata+`}}
    - `+c.resource), blueprint.Options{})
		got := summary(stepWith(t, compiled, &lookups{results: map[string]any{"vault": vault}}, nil))
		if !strings.Contains(got, "the reason is hidden") || strings.Contains(got, "hunter2") {
			t.Errorf("%s: got %s", reason, got)
		}
	}
}
