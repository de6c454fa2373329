package blueprint_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// ofWebsites returns a Blueprint with the given resources, as YAML. Its type has a field of each kind.
func ofWebsites(resources string) string {
	return `
metadata: {name: websites}
spec:
  type:
    group: shop.example.com
    version: v1
    kind: Website
    schema:
      properties:
        spec:
          type: object
          properties:
            size: {type: integer}
            name: {type: string, maxLength: 63}
            live: {type: boolean}
            ratio: {type: number}
            missing: {type: integer}
            my-field: {type: string}
            tags: {type: array, items: {type: string}, maxItems: 100}
            labels: {type: object, additionalProperties: {type: string}}
            owner: {type: object, properties: {email: {type: string}}}
            port: {x-kubernetes-int-or-string: true}
            free: {type: object, x-kubernetes-preserve-unknown-fields: true}
        status:
          type: object
          properties: {url: {type: string}}
  resources:` + resources
}

// withData returns a ConfigMap template with the given value in data.
func withData(value string) string {
	return ofWebsites(fmt.Sprintf(`
    - id: map
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {k: %s}}`, value))
}

func problemsOf(t *testing.T, text string, options blueprint.Options) []string {
	t.Helper()
	_, err := blueprint.Compile(read(text), options)
	if err == nil {
		return nil
	}
	var problems blueprint.Problems
	if !errors.As(err, &problems) {
		t.Fatalf("Compile returned %v, want Problems", err)
	}
	var all []string
	for _, p := range problems {
		all = append(all, p.String())
	}
	return all
}

func TestCompile_values(t *testing.T) {
	at := "spec.resources[0].template.data.k: "
	for reason, c := range map[string]struct{ value, want string }{
		"a field in the schema": {`"${self.spec.name}"`, ""},
		"fields of metadata": {
			`"${self.metadata.namespace + self.metadata.uid + self.metadata.labels['a/b']}"`, "",
		},
		"a status field of the author": {`"${self.status.url}"`, ""},
		"the platform's conditions": {
			`"${self.status.conditions.exists(c, c.type == 'Ready')}"`,
			at + "${self.status.conditions.exists(c, c.type == 'Ready')}: unknown field \"conditions\" (line 1, column 12)",
		},
		"the resource version": {
			`"${self.metadata.resourceVersion}"`,
			at + "${self.metadata.resourceVersion}: unknown field \"resourceVersion\" (line 1, column 14)",
		},
		"the finalizers": {
			`"${self.metadata.finalizers.size() > 0}"`,
			at + "${self.metadata.finalizers.size() > 0}: unknown field \"finalizers\" (line 1, column 14)",
		},
		"a field with a dash in backticks":                {"\"${self.spec.`my-field`}\"", ""},
		"any key of a map":                                {`"${self.spec.labels.whatever}"`, ""},
		"fields below preserved unknown fields":           {`"${self.spec.free.a.b.c}"`, ""},
		"an int-or-string field compared with both types": {`"${self.spec.port == 80 || self.spec.port == 'http'}"`, ""},
		"a literal with values of different types":        {`"${[{'n': self.spec.name, 's': self.spec.size}]}"`, ""},
		"Kubernetes' CEL libraries": {
			`"${quantity('1Gi').isGreaterThan(quantity('1Mi')) && isIP('::1') && cidr('10.0.0.0/8').containsIP('10.1.1.1') ` +
				`&& semver('1.2.3').major() == 1 && url('http://a').getHost() == 'a' && ` +
				`!format.dns1123Label().validate('a').hasValue() && [1, 2].sum() == 3 && 'ab'.find('b') == 'b'}"`,
			"",
		},
		"cel-go's libraries for strings, sets and optionals": {
			`"${'%s'.format(['a']).upperAscii() + string(sets.contains([1], [1])) + self.?spec.?name.orValue('') + ` +
				`base64.encode(b'x')}"`,
			"",
		},
		"an unknown field": {
			`"${self.spec.nome}"`, at + "${self.spec.nome}: unknown field \"nome\" (line 1, column 10); did you mean name?",
		},
		"an unknown field of an object with few fields": {
			`"${self.name}"`,
			at + "${self.name}: unknown field \"name\" (line 1, column 5); the fields are apiVersion, kind, metadata, spec, " +
				"status",
		},
		"an unknown field of a nested object": {
			`"${self.spec.owner.phone}"`, at + "${self.spec.owner.phone}: unknown field \"phone\" (line 1, column 16)",
		},
		"a field of a list item that is a string": {
			`"${self.spec.tags.map(t, t.x)}"`,
			at + "${self.spec.tags.map(t, t.x)}: type 'string' does not support field selection (line 1, column 24)",
		},
		"operands of different types": {
			`"${self.spec.size + 'x'}"`,
			at + "${self.spec.size + 'x'}: found no matching overload for '_+_' applied to '(int, string)' (line 1, column 16)",
		},
		"an unknown name": {
			`"${size}"`, at + "${size}: unknown name \"size\"; use self or the id of a resource (line 1, column 1)",
		},
		"kro's name for the instance": {
			`"${schema.spec.size}"`, at + "${schema.spec.size}: unknown name \"schema\" (line 1, column 1); did you mean self?",
		},
		"merge as a function": {
			`"${merge(self.spec.labels, {'a': 'b'}).a}"`,
			at + "${merge(self.spec.labels, {'a': 'b'}).a}: found no matching overload for 'merge' applied to " +
				"'(map(string, string), map(string, string))' (line 1, column 6); write a.merge(b)",
		},
		"merge of other types": {
			`"${self.spec.labels.merge(1)}"`,
			at + "${self.spec.labels.merge(1)}: found no matching overload for 'merge' applied to " +
				"'map(string, string).(int)' (line 1, column 23)",
		},
		"an unknown function": {
			`"${len(self.spec.name)}"`, at + "${len(self.spec.name)}: unknown function \"len\" (line 1, column 4)",
		},
		"an unknown method": {
			`"${self.spec.name.toUpper()}"`, "unknown function \"toUpper\" (line 1, column 23)",
		},
		"a syntax error": {`"${self.}"`, at + "${self.}: syntax error (line 1, column 6)"},
		"a list within text": {
			`"x${self.spec.tags}"`,
			at + "${self.spec.tags}: text can contain only strings, numbers and booleans, not list(string)",
		},
		"a missing brace": {
			`"${self.spec.name"`, at + "${ without }; write $${ for the text ${",
		},
		"an id that is reserved": {
			`"${map.metadata.uid}"`, `spec.resources[0].id: "map" is reserved; use a different id`,
		},
		"an invalid regular expression": {
			`"${self.spec.name.matches('(')}"`,
			at + "${self.spec.name.matches('(')}: invalid regular expression: error parsing regexp: missing closing ): `(`",
		},
		"an expression in a key": {
			`{"a${self.spec.name}": b}`,
			at[:len(at)-2] + `["a${self.spec.name}"]: keys must not contain expressions; ` +
				"use an expression that yields the whole map",
		},
		"an estimated cost that exceeds the limit": {
			`"${self.spec.tags.map(a, self.spec.tags.map(b, self.spec.tags.map(c, a + b + c)))}"`, "estimated cost of",
		},
		"an unlimited cost, which is only checked at run time": {`"${lists.range(self.spec.size).map(i, string(i))}"`, ""},
	} {
		t.Run(reason, func(t *testing.T) {
			text := withData(c.value)
			if !strings.Contains(c.want, `"map"`) {
				text = strings.Replace(text, "id: map", "id: config", 1)
			}
			got := problemsOf(t, text, blueprint.Options{})
			switch {
			case c.want == "" && got != nil:
				t.Errorf("rejected: %q", got)
			case c.want != "" && (len(got) == 0 || !strings.Contains(got[0], c.want)):
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestCompile_resources(t *testing.T) {
	const config = "template: {apiVersion: v1, kind: ConfigMap, metadata: {name: x}"
	for reason, c := range map[string]struct {
		resources string
		options   blueprint.Options
		want      []string
	}{
		"no resources": {resources: " []"},
		"an id must be an identifier": {
			resources: "\n    - {id: a-b, " + config + "}}",
			want: []string{
				`spec.resources[0].id: "a-b" is not a valid id; use a letter followed by at most 62 letters, digits or underscores`,
			},
		},
		"a reserved id": {
			resources: "\n    - {id: namespace, " + config + "}}",
			want:      []string{`spec.resources[0].id: "namespace" is reserved; use a different id`},
		},
		"a duplicate id": {
			resources: "\n    - {id: a, " + config + "}}\n    - {id: a, " + config + "}}",
			want:      []string{`spec.resources[1].id: "a" is already the id of spec.resources[0]`},
		},
		"invalid kind, name and status": {
			resources: `
    - {id: a, template: {apiVersion: a/b/c, kind: "${self.kind}", metadata: {}, status: {}}}
    - {id: b, template: {apiVersion: v1}}`,
			want: []string{
				"spec.resources[0].template.kind: must not contain expressions",
				`spec.resources[0].template.apiVersion: "a/b/c" is not a valid apiVersion; use one such as apps/v1`,
				"spec.resources[0].template.status: must not be set in a template",
				"spec.resources[0].template.metadata.name: is required, for example ${self.metadata.name}-web",
				"spec.resources[1].template.kind: is required and must be a string",
				"spec.resources[1].template.metadata: must be a map with a name",
			},
		},
		"children that must not be recreated": {
			resources: `
    - {id: a, onImmutable: Recreate, deletionPolicy: Retain, ` + config + `}}
    - {id: b, onImmutable: Recreate, externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {name: x}}}
    - {id: c, onImmutable: Recreate, template: {apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: x}}}
    - {id: d, onImmutable: Recreate, ` + config + `}}
    - {id: e, onImmutable: Fail, deletionPolicy: Retain, ` + config + `}}`,
			want: []string{
				"spec.resources[0].onImmutable: must not be Recreate with deletionPolicy: Retain, " +
					"because retained children are never deleted",
				"spec.resources[1].onImmutable: must not be set with externalRef, because existing objects are only read",
				"spec.resources[2].onImmutable: must not be Recreate, because deleting a PersistentVolumeClaim deletes data",
			},
		},
		"a name of the wrong type": {
			resources: `
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.spec.size}"}}}`,
			want: []string{"spec.resources[0].template.metadata.name: ${self.spec.size}: must be a string, not an integer"},
		},
		"labels and annotations that are not strings": {
			resources: `
    - {id: a, template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: a, labels: {app: a, version: 1, a/b: true, none: null}, annotations: [x]}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: b, labels: x, annotations: {port: "${self.spec.size}", a/b: "${self.spec.live}"}}}}`,
			want: []string{
				`spec.resources[0].template.metadata.labels["a/b"]: must be a string; put it in quotes`,
				"spec.resources[0].template.metadata.labels.none: must be a string; put it in quotes",
				"spec.resources[0].template.metadata.labels.version: must be a string; put it in quotes",
				"spec.resources[0].template.metadata.annotations: must be a map of strings",
				"spec.resources[1].template.metadata.labels: must be a map of strings",
				`spec.resources[1].template.metadata.annotations["a/b"]: ${self.spec.live}: must be a string, not a boolean; ` +
					`convert it with string()`,
				"spec.resources[1].template.metadata.annotations.port: ${self.spec.size}: must be a string, not an integer; " +
					"convert it with string()",
			},
		},
		"labels and annotations with expressions": {resources: `
    - {id: a, template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: a, labels: "${self.spec.labels}",
          annotations: {a: "${string(self.spec.size)}", b: "x${self.spec.size}", c: "${self.spec.?name}",
            d: "${self.spec.free.x}"}}}}`},
		"metadata that only the API server or the platform sets": {
			resources: `
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a, uid: x, ownerReferences: []}}}`,
			want: []string{
				"spec.resources[0].template.metadata.uid: must not be set in a template",
				"spec.resources[0].template.metadata.ownerReferences: must not be set in a template",
			},
		},
		"a child of the Blueprint's own type": {
			resources: `
    - {id: a, template: {apiVersion: shop.example.com/v2, kind: Website, metadata: {name: a}}}`,
			want: []string{"spec.resources[0].template.kind: must not be the Blueprint's own type"},
		},
		"a child of another Blueprint's type": {resources: `
    - {id: a, template: {apiVersion: shop.example.com/v1, kind: Shop, metadata: {name: a},
        spec: {x: "${self.spec.size}"}}}`},
		"a namespace of namespaced and cluster-scoped kinds": {
			resources: `
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: x}}}
    - {id: b, template: {apiVersion: v1, kind: Namespace, metadata: {name: a, namespace: x}}}`,
			options: blueprint.Options{
				IsNamespaced: func(gvk schema.GroupVersionKind) (bool, bool) { return gvk.Kind == "ConfigMap", true },
			},
			want: []string{
				"spec.resources[1].template.metadata.namespace: must not be set, because Namespace is cluster-scoped",
			},
		},
		"includeWhen reads self and other resources": {
			resources: `
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}
    - {id: b, includeWhen: [a.data.x == 'y', b.data.x == 'y', self.spec.size, self.spec.live],
        template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}}`,
			want: []string{
				"spec.resources[1].includeWhen[1]: ${b.data.x == 'y'}: must not refer to the resource itself, which does not " +
					"exist yet",
				"spec.resources[1].includeWhen[2]: ${self.spec.size}: must be a boolean, not an integer",
			},
		},
		"readyWhen reads the resource and self": {
			resources: `
    - {id: a, readyWhen: ["${a.data.x == self.spec.name}"],
        template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}
    - {id: b, readyWhen: [a.data.x == 'y'], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}}`,
			want: []string{
				"spec.resources[1].readyWhen[0]: ${a.data.x == 'y'}: must not refer to a; readyWhen can read only b and self",
			},
		},
		"a resource that refers to itself": {
			resources: `
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${a.metadata.uid}"}}}`,
			want: []string{
				"spec.resources[0].template.metadata.name: ${a.metadata.uid}: must not refer to the resource itself, which does " +
					"not exist yet",
			},
		},
		"a cycle, and a resource that refers to it": {
			resources: `
    - {id: first, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${a.metadata.uid}"}}}
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${b.metadata.uid}"}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${c.metadata.uid}"}}}
    - {id: c, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${a.metadata.uid}"}}}`,
			want: []string{"spec.resources[1].template: refers to itself in a cycle: a -> b -> c -> a"},
		},
		"fields of a kind with a known schema": {
			resources: `
    - {id: s, readyWhen: [s.spec.clusterIP != ''], template: {apiVersion: v1, kind: Service, metadata: {name: a}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${s.spec.clusterIq}"},
        data: {x: "${s.spec.targetPort == 80}"}}}`,
			options: blueprint.Options{SchemaFor: func(gvk schema.GroupVersionKind) common.Schema {
				if gvk.Kind != "Service" {
					return nil
				}
				port := spec.StringProperty()
				port.Format = "int-or-string"
				return &openapi.Schema{Schema: &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"},
					Properties: map[string]spec.Schema{
						"spec": {SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{
							"clusterIP": *spec.StringProperty(), "targetPort": *port,
						}}},
					}}}}
			}},
			want: []string{
				"spec.resources[1].template.metadata.name: ${s.spec.clusterIq}: unknown field \"clusterIq\" (line 1, column 7); " +
					"did you mean clusterIP?",
			},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			if d := cmp.Diff(c.want, problemsOf(t, ofWebsites(c.resources), c.options)); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
		})
	}
}

func TestCompile_reportsProblemsOfTypeAndTemplatesTogether(t *testing.T) {
	for reason, c := range map[string]struct {
		fields string // fields of spec.type
		want   []string
	}{
		"self is checked although the schema is invalid": {
			"schema: {properties: {spec: {type: object, properties: {size: {type: int}}}}}",
			[]string{
				`spec.type.schema.properties[spec].properties[size].type: Unsupported value: "int"`,
				"spec.resources[0].template.metadata.name: ${self.spec.sise}: unknown field",
				"spec.resources[1].template: refers to itself in a cycle: a -> b -> a",
			},
		},
		"self is not checked if keywords are misspelt": {
			"schema: {properties: {spec: {type: object, propertys: {}}}}",
			[]string{
				"spec.type.schema.properties.spec.propertys: unknown field; did you mean properties?",
				"spec.resources[1].template: refers to itself in a cycle: a -> b -> a",
			},
		},
		"the scope is known although the schema is invalid": {
			"scope: Cluster, schema: {properties: {spec: {type: object, propertys: {}}}}",
			[]string{
				"spec.type.schema.properties.spec.propertys: unknown field",
				"spec.resources[0].template.metadata.namespace: is required, because ConfigMap is namespaced and the instance " +
					"is not",
				"spec.resources[1].template.metadata.namespace: is required",
				"spec.resources[2].template.metadata.namespace: is required",
				"spec.resources[1].template: refers to itself in a cycle",
			},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			text := strings.Replace(ofType(c.fields), "resources: []", `resources:
    - {id: c, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.spec.sise}"}}}
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${b.metadata.uid}"}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${a.metadata.uid}"}}}`, 1)
			got := problemsOf(t, text, blueprint.Options{IsNamespaced: scopes})
			if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestCompile_identityAndPolicies(t *testing.T) {
	const text = `
spec:
  serviceAccountName: shop.a
  type: {group: shop.example.com, version: v1, kind: Crate, ` + plain + `}
  resources:
    - {id: a, deletionPolicy: Retain, adopt: true, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}
    - {id: b, includeWhen: ["self.spec.size > 1"], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}}
    - {id: c, onImmutable: Recreate, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: c}}}
    - {id: d, onImmutable: Recreate, forEach: [{i: "[1]"}], template: {apiVersion: v1, kind: ConfigMap, metadata: {
        name: "d${i}"}}}`
	compiled := compile(t, text, blueprint.Options{})
	if got := compiled.ServiceAccountName(); got != "shop.a" {
		t.Errorf("the service account is %q", got)
	}
	templates := compiled.Templates()
	if a, b := templates[0], templates[1]; !a.Adopt || a.DeletionPolicy != blueprint.Retain || b.Adopt ||
		b.DeletionPolicy != blueprint.Delete {
		t.Errorf("templates %+v", templates)
	}
	s := step(t, compiled, "{apiVersion: shop.example.com/v1, kind: Crate, metadata: {name: a, namespace: x}, spec: "+
		"{size: 1}}", nil)
	if len(s.Rendered) != 3 || !s.Rendered[0].Adopt || s.Rendered[0].DeletionPolicy != blueprint.Retain ||
		s.Rendered[0].OnImmutable != "" || s.Rendered[1].OnImmutable != blueprint.Recreate ||
		s.Rendered[2].OnImmutable != blueprint.Recreate || len(s.Excluded) != 1 ||
		s.Excluded[0].DeletionPolicy != blueprint.Delete {
		t.Errorf("step %+v", s)
	}
}

func TestCompile_existingDefinition(t *testing.T) {
	const text = `
spec:
  type: {crd: websites.shop.example.com}
  resources:
    - id: a
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: "${self.spec.nome}"}}`
	made := compile(t, ofWebsites(" []"), blueprint.Options{}).Definition()
	if got := problemsOf(t, text, blueprint.Options{}); got != nil {
		t.Errorf("without the CustomResourceDefinition, self must not be checked: got %q", got)
	}
	if got := problemsOf(t, text, blueprint.Options{CRD: made}); len(got) != 1 {
		t.Errorf("with the CustomResourceDefinition, self must be checked: got %q", got)
	}
	made.Spec.Scope = apiextensionsv1.ClusterScoped
	namespaced := func(schema.GroupVersionKind) (bool, bool) { return true, true }
	want := "spec.resources[0].template.metadata.namespace: is required, because ConfigMap is namespaced and the " +
		"instance is not"
	if got := problemsOf(t, text, blueprint.Options{CRD: made, IsNamespaced: namespaced}); len(got) != 2 ||
		got[0] != want {
		t.Errorf("got %q, want %q first", got, want)
	}
}

func TestTemplates_sortedByReferences(t *testing.T) {
	compiled, err := blueprint.Compile(read(ofWebsites(`
    - {id: c, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${b.metadata.name + a.metadata.name}"}}}
    - {id: a, template: {apiVersion: v1, kind: Secret, metadata: {name: a}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${a.metadata.name}"}}}`)), blueprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range compiled.Templates() {
		got = append(got, fmt.Sprint(x.ID, x.Needs, x.Path))
	}
	want := []string{"a[]spec.resources[1].template", "b[a]spec.resources[2].template", "c[a b]spec.resources[0].template"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := fmt.Sprint(compiled.Kinds()); got != "[/v1, Kind=ConfigMap /v1, Kind=Secret]" {
		t.Errorf("Kinds() = %s", got)
	}
}

func TestProblems_fitInConditionMessage(t *testing.T) {
	var problems blueprint.Problems
	for range 1000 {
		problems = append(problems, blueprint.Problem{
			Path: strings.Repeat("p", 10000), Expression: strings.Repeat("é", 10000), Reason: strings.Repeat("\xff", 100000),
		})
	}
	message := problems.Error()
	if len(message) > 32768/2 || !strings.HasSuffix(message, "\nand 990 more") || !strings.Contains(message, "é...}") {
		t.Errorf("%d bytes: ...%s", len(message), message[len(message)-100:])
	}
}
