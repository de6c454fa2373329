package blueprint_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// parts defines a Crate, a ConfigMap that waits for the Crate, and a ConfigMap that an instance can exclude.
const parts = `
    - id: crate
      readyWhen: [crate.spec.lid]
      template: {apiVersion: shop.example.com/v1, kind: Crate, metadata: {name: "${self.metadata.name}"},
        spec: {size: 1}}
    - id: config
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: config}, data: {uid: "${crate.metadata.uid}"}}
    - id: extra
      includeWhen: [self.spec.live]
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: extra}}`

// reporting returns a Blueprint whose type has these additional fields, as YAML.
func reporting(fields, resources string) string {
	return strings.Replace(ofWebsites(resources), "    schema:", "    "+fields+"\n    schema:", 1)
}

// observedParts returns the objects of parts. The Crate is not ready.
func observedParts() map[string]string {
	return map[string]string{
		"crate": `{apiVersion: shop.example.com/v1, kind: Crate, metadata: {name: flowers, namespace: shop, uid: u},
			spec: {size: 3, lid: false, owner: {email: null}, tags: [a, b]}, status: {up: false, ip: 10.0.0.7}}`,
		"config": `{apiVersion: v1, kind: ConfigMap, metadata: {name: config, namespace: shop}, data: {uid: u}}`,
		"extra":  `{apiVersion: v1, kind: ConfigMap, metadata: {name: extra, namespace: shop, uid: x}}`,
	}
}

func TestReport_fields(t *testing.T) {
	for reason, c := range map[string]struct {
		status, want, problem string
		without               string // the part to leave out of observedParts
	}{
		"a resource that is not ready":             {status: `{a: "${crate.status.ip}"}`, want: `{"a":"10.0.0.7"}`},
		"an existing object of a waiting resource": {status: `{a: "${config.data.uid}"}`, want: `{"a":"u"}`},
		"values of several types":                  {status: `{a: "${crate.spec.size}"}`, want: `{"a":3}`},
		"text around expressions": {
			status: `{a: "${crate.status.ip}:${crate.spec.size}"}`, want: `{"a":"10.0.0.7:3"}`,
		},
		"a field of self": {status: `{a: "${self.spec.name}"}`, want: `{"a":"Flowers"}`},
		"literals": {
			status: `{a: [1, x, {b: true}], c: {d: {}}}`, want: `{"a":[1,"x",{"b":true}],"c":{"d":{}}}`,
		},
		"a field of a missing resource is omitted": {
			status: `{a: "${crate.status.ip}", b: 1}`, without: "crate", want: `{"a":null,"b":1}`,
		},
		"a missing field is omitted":                 {status: `{a: "${crate.status.host}"}`, want: `{"a":null}`},
		"a missing field of self is omitted":         {status: `{a: "${self.spec.missing}"}`, want: `{"a":null}`},
		"a field of an excluded resource is omitted": {status: `{a: "${extra.metadata.uid}"}`, want: `{"a":null}`},
		"text with a missing value is omitted completely": {
			status: `{a: "http://${crate.status.ip}:${crate.status.port}"}`, want: `{"a":null}`,
		},
		"only the smallest part is omitted": {
			status: `{a: {b: "${crate.status.host}", c: ["${crate.status.host}", "${crate.status.ip}"]}}`,
			want:   `{"a":{"c":["10.0.0.7"]}}`,
		},
		"null is omitted": {
			status: `{a: "${null}", b: {c: "${crate.spec.owner}", d: "${[null, 1]}"}}`, want: `{"a":null,"b":{"c":{},"d":[1]}}`,
		},
		"optional.none() is omitted": {
			status: `{a: "${crate.status.?host}", b: ["${crate.status.?host}"]}`, want: `{"a":null,"b":[]}`,
		},
		"a failed expression does not affect other fields": {
			status: `{a: "${crate.spec.size / 0}", b: "${crate.spec.size}"}`, want: `{"a":null,"b":3}`,
			problem: "spec.type.status.a: ${crate.spec.size / 0}: division by zero",
		},
		"a status that is too large": {
			status:  `{a: "${lists.range(9000).map(i, 'aaaaaa')}", b: 1}`,
			problem: "spec.type: the status and the conditions have more than 32768 bytes", want: `{"a":null,"b":null}`,
		},
	} {
		t.Run(reason, func(t *testing.T) {
			compiled := compile(t, reporting("status: "+c.status, parts), blueprint.Options{})
			observed := observedParts()
			delete(observed, c.without)
			s := step(t, compiled, strings.Replace(flowers, "size: 2", "size: 2, live: false", 1), observed)
			if got := s.Report.Problems.Error(); got != c.problem {
				t.Errorf("problems %q, want %q", got, c.problem)
			}
			if got, _ := json.Marshal(s.Report.Fields); string(got) != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if len(s.Problems) > 0 || s.Ready {
				t.Errorf("problems with resources: %v, ready: %t", s.Problems, s.Ready)
			}
		})
	}
}

// Anyone who can create objects can mark one as the child of a resource that waits.
func TestReport_doesNotReadForgedChildren(t *testing.T) {
	compiled := compile(t, reporting(`status: {a: "${config.data.uid}", b: "${crate.status.ip}"}`, parts),
		blueprint.Options{})
	observed := observedParts()
	observed["config"] = strings.Replace(observed["config"], "name: config", "name: forged", 1)
	s := step(t, compiled, strings.Replace(flowers, "size: 2", "size: 2, live: true", 1), observed)
	if got, _ := json.Marshal(s.Report.Fields); string(got) != `{"a":null,"b":"10.0.0.7"}` {
		t.Errorf("got %s", got)
	}
}

func TestReport_conditions(t *testing.T) {
	for reason, c := range map[string]struct {
		condition string
		want      metav1.Condition
		problem   string
	}{
		"true": {
			`{type: Up, status: "${crate.spec.size > 2}"}`,
			metav1.Condition{Type: "Up", Status: "True", Reason: "ConditionMet"}, "",
		},
		"false, with a reason and a message": {
			`{type: example.com/Up, status: crate.status.up, reason: "${'No' + 'Crate'}",
				message: "${crate.status.ip} is down"}`,
			metav1.Condition{
				Type: "example.com/Up", Status: "False", Reason: "NoCrate", Message: "10.0.0.7 is down",
			}, "",
		},
		"a missing value": {
			`{type: Up, status: crate.status.missing, reason: A}`,
			metav1.Condition{
				Type: "Up", Status: "Unknown", Reason: "ValueMissing", Message: "crate.status.missing does not exist",
			}, "",
		},
		"a missing message": {
			`{type: Up, status: crate.status.up, reason: "${crate.status.why}", message: "${crate.status.why}"}`,
			metav1.Condition{Type: "Up", Status: "False", Reason: "ConditionNotMet"}, "",
		},
		"a failure": {
			`{type: Up, status: crate.spec.size / 0 == 1}`,
			metav1.Condition{
				Type: "Up", Status: "Unknown", Reason: "ExpressionFailed",
				Message: "the expression failed; see the Ready condition",
			}, "spec.type.conditions[0].status: ${crate.spec.size / 0 == 1}: division by zero",
		},
		"not a boolean": {
			`{type: Up, status: crate.spec.size}`,
			metav1.Condition{
				Type: "Up", Status: "Unknown", Reason: "ExpressionFailed",
				Message: "the expression failed; see the Ready condition",
			}, "spec.type.conditions[0].status: ${crate.spec.size}: is of type int, not bool",
		},
		"a reason with two words": {
			`{type: Up, status: crate.status.up, reason: "${self.spec.name + ' b'}"}`,
			metav1.Condition{Type: "Up", Status: "False", Reason: "ConditionNotMet"},
			`spec.type.conditions[0].reason: "Flowers b" is not a valid reason; use one word that starts with a letter, ` +
				"such as NoEndpoints",
		},
		"a message that is a number": {
			`{type: Up, status: crate.status.up, message: "${crate.spec.size}"}`,
			metav1.Condition{Type: "Up", Status: "False", Reason: "ConditionNotMet"},
			"spec.type.conditions[0].message: must be a string; convert it with string()",
		},
		"a long message": {
			`{type: Up, status: crate.status.up, message: "${lists.range(1000).map(i, 'äb').join('')}"}`,
			metav1.Condition{
				Type: "Up", Status: "False", Reason: "ConditionNotMet",
				Message: strings.Repeat("äb", 341) + "...",
			}, "",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			s := step(t, compile(t, reporting("conditions: ["+c.condition+"]", parts), blueprint.Options{}),
				strings.Replace(flowers, "size: 2", "size: 2, live: true", 1), observedParts())
			if got := s.Report.Problems.Error(); got != c.problem {
				t.Errorf("problems %q, want %q", got, c.problem)
			}
			if d := cmp.Diff([]metav1.Condition{c.want}, s.Report.Conditions); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// self does not contain the fields of spec.type.status. Otherwise, a template that reads such a field would change the
// status, and each change would trigger the next.
func TestReport_notPartOfSelf(t *testing.T) {
	text := reporting(`status: {url: "${self.status.url}", other: b}`, " []")
	want := []string{`spec.type.status.url: ${self.status.url}: unknown field "status" (line 1, column 5)`}
	got := problemsOf(t, text, blueprint.Options{})
	for i := range got {
		got[i], _, _ = strings.Cut(got[i], ";")
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	compiled := compile(t, `
spec:
  type: {crd: websites.shop.example.com, status: {url: "${self.?status.?url.orValue('none')}", theirs: 1}}
  resources: []`, blueprint.Options{})
	s := step(t, compiled, flowers+"\nstatus: {url: x}", nil)
	if got := s.Report.Fields["url"]; got != "none" {
		t.Errorf("self contains the status %v", got)
	}
}

func TestReport_limitsCost(t *testing.T) {
	const costly = "${lists.range(9999).map(i, lists.range(9)).size()}"
	fields := make([]string, 300)
	for i := range fields {
		fields[i] = fmt.Sprintf("f%03d: %q", i, costly)
	}
	compiled := compile(t, reporting("status: {"+strings.Join(fields, ", ")+"}", "\n    - {id: config, template: "+
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}"), blueprint.Options{})
	s := step(t, compiled, flowers, nil)
	if limit := uint64(blueprint.MaxInstanceCost + expression.PerCallLimit); s.Cost > limit ||
		s.Cost < blueprint.MaxInstanceCost {
		t.Errorf("the cost is %d", s.Cost)
	}
	if len(s.Rendered) != 1 || !strings.Contains(s.Report.Problems.Error(), "exceeds 10000000") {
		t.Errorf("rendered %v, problems %v", s.Rendered, s.Report.Problems)
	}
}

func TestReport_stopsWhenContextIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	compiled := compile(t, reporting(`status: {a: "${lists.range(9000).map(i, i + self.spec.size).size()}"}`, " []"),
		blueprint.Options{})
	if s, err := compiled.Instance(object(flowers)).Step(ctx, nil); err == nil {
		t.Errorf("got %+v", s)
	}
}

func TestCompile_report(t *testing.T) {
	secret := `
    - {id: db, template: {apiVersion: v1, kind: Secret, metadata: {name: db}}}
    - {id: copy, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: copy}, data: {a: "${db.data.password}"}}}`
	for reason, c := range map[string]struct {
		fields string
		want   []string
	}{
		"names and UIDs of Secrets": {fields: `status: {a: "${db.metadata.name}", b: "${copy.metadata.uid}"}`},
		"Secret data in fields": {
			fields: `status: {a: "${db.data.password}", b: {c: ["x${copy.data.a}"]}}`,
			want: []string{
				"spec.type.status.a: ${db.data.password}: must not read a Secret's data",
				"spec.type.status.b.c[0]: ${copy.data.a}: must not read a Secret's data",
			},
		},
		"Secret data in conditions": {
			fields: `conditions: [{type: A, status: "db.data.size() > 0", reason: "${db.type}", message: "x ${[db].size()}"}]`,
			want: []string{
				"spec.type.conditions[0].status: ${db.data.size() > 0}: must not read a Secret's data",
				"spec.type.conditions[0].reason: ${db.type}: must not read a Secret's data",
				"spec.type.conditions[0].message: ${[db].size()}: must not read a Secret's data",
			},
		},
		"fields of the platform": {
			fields: "status: {conditions: [], observedGeneration: 1, revision: a}",
			want: []string{
				"spec.type.status.conditions: must not be set; the platform defines it",
				"spec.type.status.observedGeneration: must not be set; the platform defines it",
				"spec.type.status.revision: must not be set; the platform defines it",
			},
		},
		"invalid values of conditions": {
			fields: `conditions: [{type: A, status: "${self.spec.name}", reason: "no reason", message: "${self.spec.size}"}]`,
			want: []string{
				`spec.type.conditions[0].reason: "no reason" is not a valid reason; use one word that starts with a letter`,
				"spec.type.conditions[0].status: ${self.spec.name}: must be a boolean, not a string",
				"spec.type.conditions[0].message: ${self.spec.size}: must be a string, not an integer; convert it with string()",
			},
		},
		"invalid expressions": {
			fields: `status: {a: "${dbb.metadata.name}", "b${c}": d, e: "${self.spec.nome}"}`,
			want: []string{
				`spec.type.status["b${c}"]: keys must not contain expressions`,
				`spec.type.status.a: ${dbb.metadata.name}: unknown name "dbb"`,
				`spec.type.status.e: ${self.spec.nome}: unknown field "nome"`,
			},
		},
		"a status that is too large": {
			fields: "status: {a: " + strings.Repeat("a", 32<<10) + "}",
			want:   []string{"spec.type.status: has more than 32768 bytes"},
		},
		"a declared field": {fields: `status: {url: "http://${self.spec.name}"}`},
		"a declared field with the wrong type": {
			fields: `status: {url: "${self.spec.size}"}`,
			want: []string{
				"spec.type.status.url: ${self.spec.size}: must be a string, not an integer; convert it with string()",
			},
		},
		"a declared field that is not an object": {
			fields: `status: {url: {host: a}}`, want: []string{"spec.type.status.url: must be a string"},
		},
		"printer columns for the status": {
			fields: `status: {web: {url: "${self.spec.name}"}, any: "${self.spec.free}"}
    printerColumns: [{name: A, type: string, jsonPath: .status.web.url},
      {name: B, type: string, jsonPath: .status.web.uri},
      {name: C, type: string, jsonPath: .status.wbe}, {name: D, type: string, jsonPath: .status.any.thing}]`,
			want: []string{
				"spec.type.printerColumns[2].jsonPath: unknown field .status.wbe; did you mean web?",
				"spec.type.printerColumns[1].jsonPath: unknown field .status.web.uri; did you mean url?",
			},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			got := problemsOf(t, reporting(c.fields, secret), blueprint.Options{})
			for i := range min(len(got), len(c.want)) {
				if strings.HasPrefix(got[i], c.want[i]) {
					got[i] = c.want[i]
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestCompile_reportOfExistingDefinition(t *testing.T) {
	made := compile(t, ofWebsites(" []"), blueprint.Options{}).Definition()
	text := `
spec:
  type: {crd: websites.shop.example.com, status: {url: "${self.spec.size}", uri: a}}
  resources: []`
	want := []string{
		"spec.type.status.uri: unknown field; did you mean url?",
		"spec.type.status.url: ${self.spec.size}: must be a string, not an integer; convert it with string()",
	}
	if d := cmp.Diff(want, problemsOf(t, text, blueprint.Options{CRD: made})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := problemsOf(t, text, blueprint.Options{}); got != nil {
		t.Errorf("before the CustomResourceDefinition exists: %q", got)
	}
}

// schemaOfStatus returns the schema of spec.type.status as JSON.
func schemaOfStatus(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) string {
	t.Helper()
	fields := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties
	for _, name := range []string{"conditions", "observedGeneration", "revision", "url"} {
		delete(fields, name)
	}
	out, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestDefinition_statusSchema(t *testing.T) {
	const (
		anything, text = `{"x-kubernetes-preserve-unknown-fields":true}`, `{"type":"string"}`
		integer        = `{"type":"integer"}`
	)
	object := func(fields string) string { return `{"type":"object","properties":{` + fields + `}}` }
	for status, want := range map[string]string{
		`"${crate.spec.size}"`:                   `{"type":"integer"}`,
		`"${crate.spec.lid}"`:                    `{"type":"boolean"}`,
		`"${2.0 * 3.0}"`:                         `{"type":"number"}`,
		`"${crate.spec.color}"`:                  text,
		`"${crate.spec.?color}"`:                 text,
		`"${timestamp('2026-01-02T03:04:05Z')}"`: text,
		`"a ${crate.spec.size}"`:                 text,
		`"${crate.spec.port}"`:                   anything,
		`"${crate.spec.owner}"`:                  `{"type":"object","x-kubernetes-preserve-unknown-fields":true}`,
		`"${crate.spec.tags}"`:                   `{"type":"array","items":` + text + `}`,
		`"${crate.spec.labels}"`:                 `{"type":"object","additionalProperties":` + text + `}`,
		`"${config.data}"`:                       anything, // the kind has no schema
		`{a: "${crate.spec.size}", b: {c: x}}`:   object(`"a":` + integer + `,"b":` + object(`"c":`+text)),
		`["${crate.spec.color}", a]`:             `{"type":"array","items":` + text + `}`,
		`["${crate.spec.size}", a]`:              `{"type":"array","items":` + anything + `}`,
		`[]`:                                     `{"type":"array","items":` + anything + `}`,
		`{a: 1, b: 1.5, c: true, d: null}`: object(`"a":` + integer +
			`,"b":{"type":"number"},"c":{"type":"boolean"},"d":` + anything),
		`"${crate.spec.tags.map(t, {'name': t, 'n': 1})}"`: `{"type":"array",` +
			`"items":{"type":"object","additionalProperties":` + anything + `}}`,
	} {
		compiled := compile(t, reporting("status: {f: "+status+"}", parts), describing(t, definitionOf(t, crates)))
		if d := cmp.Diff(`{"f":`+want+`}`, schemaOfStatus(t, compiled.Definition())); d != "" {
			t.Errorf("%s (-want +got):\n%s", status, d)
		}
	}
}

// Schemas of kinds can be temporarily unknown, and can differ between API servers during an upgrade.
func TestDefinition_statusSchemaIsStable(t *testing.T) {
	known := describing(t, definitionOf(t, crates))
	with := func(options blueprint.Options, crd *apiextensionsv1.CustomResourceDefinition) blueprint.Options {
		options.CRD = crd
		return options
	}
	text := reporting(`status: {a: "${crate.spec.size}", b: {c: "${crate.spec.tags}"}, d: ["${crate.spec.labels}"]}`,
		parts)
	first := compile(t, text, known).Definition()
	if d := cmp.Diff(first, compile(t, text, with(blueprint.Options{}, first)).Definition()); d != "" {
		t.Errorf("without the schema (-want +got):\n%s", d)
	}
	open := compile(t, text, blueprint.Options{}).Definition()
	if cmp.Equal(first, open) {
		t.Error("the schema is not used")
	}
	if d := cmp.Diff(open, compile(t, text, with(known, open)).Definition()); d != "" {
		t.Errorf("with a schema that became known later (-want +got):\n%s", d)
	}
	if changes := blueprint.IncompatibleChanges(first, open); len(changes) > 0 {
		t.Errorf("changes %v", changes)
	}
	for status, want := range map[string]string{
		`{a: "${crate.spec.size + 1}", b: {c: ["x"]}, d: ["${crate.spec.labels}"], e: 1}`: "",
		`{a: "${crate.spec.color}", b: {c: ["x"]}, d: ["${crate.spec.labels}"]}`: "properties.a: the type changes from " +
			"integer to string",
		`{a: 1, b: {}, d: ["${crate.spec.labels}"]}`: "properties.c: the field is removed",
		`{a: 1, b: {c: ["x"]}}`:                      "properties.d: the field is removed",
	} {
		next := compile(t, reporting("status: "+status, parts), with(known, first)).Definition()
		got := blueprint.IncompatibleChanges(first, next).Error()
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", status, got, want)
		}
	}
}

func TestOlderType_keepsTheNewestSchema(t *testing.T) {
	options := describing(t, definitionOf(t, crates))
	older := read(reporting(`status: {a: "${crate.spec.size}", gone: 1}
    conditions: [{type: Old, status: crate.spec.lid}]`, parts))
	newest := read(reporting(`status: {a: "${1 + 1}", new: "${self.spec.name}"}`, " []"))
	compiled, err := blueprint.Compile(newest, options)
	if err != nil {
		t.Fatal(err)
	}
	older.Spec.Type = compiled.OlderType(newest.Spec.Type, older.Spec.Type)
	again, err := blueprint.Compile(older, options)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(compiled.Definition(), again.Definition()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	s, err := again.Instance(object(flowers)).Step(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := json.Marshal(s.Report.Fields); string(got) != `{"a":null}` || len(s.Report.Conditions) != 1 {
		t.Errorf("fields %s, conditions %v", got, s.Report.Conditions)
	}
}
