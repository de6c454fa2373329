package blueprint_test

import (
	"errors"
	"fmt"
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

// ofWebsites is a Blueprint with these resources, as YAML, of a type that has a field of each kind.
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

// withData is a ConfigMap's template with this value of data.
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
		t.Fatalf("Compile's error is no Problems: %v", err)
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
		"a field of the schema is known":               {`"${self.spec.name}"`, ""},
		"so is all of metadata":                        {`"${self.metadata.namespace + self.metadata.uid + self.metadata.labels['a/b']}"`, ""},
		"and the status of the author":                 {`"${self.status.url}"`, ""},
		"what the platform says is not an author's":    {`"${self.status.conditions.exists(c, c.type == 'Ready')}"`, at + "${self.status.conditions.exists(c, c.type == 'Ready')}: undefined field 'conditions' (line 1, column 12)"},
		"nor what changes with each write":             {`"${self.metadata.resourceVersion}"`, at + "${self.metadata.resourceVersion}: undefined field 'resourceVersion' (line 1, column 14)"},
		"nor what the platform holds an instance with": {`"${self.metadata.finalizers.size() > 0}"`, at + "${self.metadata.finalizers.size() > 0}: undefined field 'finalizers' (line 1, column 14)"},
		"a field with a dash goes in backticks":        {"\"${self.spec.`my-field`}\"", ""},
		"any key of a map is a field":                  {`"${self.spec.labels.whatever}"`, ""},
		"what the schema leaves open is not checked":   {`"${self.spec.free.a.b.c}"`, ""},
		"a number or a string may be either":           {`"${self.spec.port == 80 || self.spec.port == 'http'}"`, ""},
		"values of a literal may differ in type":       {`"${[{'n': self.spec.name, 's': self.spec.size}]}"`, ""},
		"Kubernetes' libraries are there":              {`"${quantity('1Gi').isGreaterThan(quantity('1Mi')) && isIP('::1') && cidr('10.0.0.0/8').containsIP('10.1.1.1') && semver('1.2.3').major() == 1 && url('http://a').getHost() == 'a' && !format.dns1123Label().validate('a').hasValue() && [1, 2].sum() == 3 && 'ab'.find('b') == 'b'}"`, ""},
		"and cel-go's of strings, sets and optionals":  {`"${'%s'.format(['a']).upperAscii() + string(sets.contains([1], [1])) + self.?spec.?name.orValue('') + base64.encode(b'x')}"`, ""},
		"an unknown field is told":                     {`"${self.spec.nome}"`, at + "${self.spec.nome}: undefined field 'nome' (line 1, column 10): did you mean name?"},
		"with all there are, if they are few":          {`"${self.name}"`, at + "${self.name}: undefined field 'name' (line 1, column 5); there are apiVersion, kind, metadata, spec, status"},
		"below an object, too":                         {`"${self.spec.owner.phone}"`, at + "${self.spec.owner.phone}: undefined field 'phone' (line 1, column 16)"},
		"within a list, too":                           {`"${self.spec.tags.map(t, t.x)}"`, at + "${self.spec.tags.map(t, t.x)}: type 'string' does not support field selection (line 1, column 24)"},
		"a type that does not fit is told":             {`"${self.spec.size + 'x'}"`, at + "${self.spec.size + 'x'}: found no matching overload for '_+_' applied to '(int, string)' (line 1, column 16)"},
		"an unknown name is told":                      {`"${size}"`, at + "${size}: undeclared reference to 'size' (line 1, column 1); there are self and the resources' ids"},
		"an unknown function is told":                  {`"${len(self.spec.name)}"`, at + "${len(self.spec.name)}: undeclared reference to 'len' (line 1, column 4); neither CEL nor Kubernetes' libraries for it have this function"},
		"and one of an object":                         {`"${self.spec.name.toUpper()}"`, "(line 1, column 23); neither CEL"},
		"what is no CEL is told":                       {`"${self.}"`, at + "${self.}: no viable alternative at input '.' (line 1, column 6)"},
		"a list within text is told":                   {`"x${self.spec.tags}"`, at + "${self.spec.tags}: is of type list(string), and within text there can be a string, a number or a boolean"},
		"a missing brace is told":                      {`"${self.spec.name"`, at + "a ${ without its }; for the text ${ write $${"},
		"a reference to what it makes is told":         {`"${map.metadata.uid}"`, `spec.resources[0].id: "map" means something else in expressions`},
		"a bad regular expression is told":             {`"${self.spec.name.matches('(')}"`, at + "${self.spec.name.matches('(')}: a bad regular expression: error parsing regexp: missing closing ): `(`"},
		"a key with an expression is told":             {`{"a${self.spec.name}": b}`, at[:len(at)-2] + `["a${self.spec.name}"]: a key cannot have expressions; use one that makes the whole map`},
		"costs that the schema allows are told":        {`"${self.spec.tags.map(a, self.spec.tags.map(b, self.spec.tags.map(c, a + b + c)))}"`, "it may cost"},
		"costs that nothing bounds are told when paid": {`"${lists.range(self.spec.size).map(i, string(i))}"`, ""},
	} {
		t.Run(reason, func(t *testing.T) {
			text := withData(c.value)
			if !strings.Contains(c.want, `"map"`) {
				text = strings.Replace(text, "id: map", "id: config", 1)
			}
			got := problemsOf(t, text, blueprint.Options{})
			switch {
			case c.want == "" && got != nil:
				t.Errorf("refused: %q", got)
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
		"none is a type whose instances become nothing": {resources: " []"},
		"an id has to be an identifier": {
			resources: "\n    - {id: a-b, " + config + "}}",
			want:      []string{`spec.resources[0].id: "a-b" is no identifier: letters, digits and _, at most 63, a letter first`},
		},
		"an id that CEL knows is refused": {
			resources: "\n    - {id: namespace, " + config + "}}",
			want:      []string{`spec.resources[0].id: "namespace" means something else in expressions`},
		},
		"an id is used once": {
			resources: "\n    - {id: a, " + config + "}}\n    - {id: a, " + config + "}}",
			want:      []string{`spec.resources[1].id: "a" is spec.resources[0] already`},
		},
		"a template has a kind without expressions, a name and no status": {
			resources: `
    - {id: a, template: {apiVersion: a/b/c, kind: "${self.kind}", metadata: {}, status: {}}}
    - {id: b, template: {apiVersion: v1}}`,
			want: []string{
				"spec.resources[0].template.kind: cannot have expressions: what kinds of objects there are is known before there is an instance",
				`spec.resources[0].template.apiVersion: "a/b/c" is no apiVersion`,
				"spec.resources[0].template.status: must not be set in a template",
				"spec.resources[0].template.metadata.name: is required, a string, as ${self.metadata.name}-web",
				"spec.resources[1].template.kind: is required, a string",
				"spec.resources[1].template.metadata: has to be an object with a name",
			},
		},
		"a name is a string": {
			resources: `
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.spec.size}"}}}`,
			want: []string{"spec.resources[0].template.metadata.name: ${self.spec.size}: is of type int, not string"},
		},
		"labels and annotations are maps of strings": {
			resources: `
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: {app: a, version: 1, a/b: true, none: null}, annotations: [x]}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b, labels: x, annotations: {port: "${self.spec.size}", a/b: "${self.spec.live}"}}}}`,
			want: []string{
				`spec.resources[0].template.metadata.labels["a/b"]: has to be a string: put it in quotes`,
				"spec.resources[0].template.metadata.labels.none: has to be a string: put it in quotes",
				"spec.resources[0].template.metadata.labels.version: has to be a string: put it in quotes",
				"spec.resources[0].template.metadata.annotations: has to be a map of strings",
				"spec.resources[1].template.metadata.labels: has to be a map of strings",
				`spec.resources[1].template.metadata.annotations["a/b"]: ${self.spec.live}: is of type bool, not string: make it one with string()`,
				"spec.resources[1].template.metadata.annotations.port: ${self.spec.size}: is of type int, not string: make it one with string()",
			},
		},
		"and may be made of expressions": {resources: `
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: "${self.spec.labels}", annotations: {a: "${string(self.spec.size)}", b: "x${self.spec.size}", c: "${self.spec.?name}", d: "${self.spec.free.x}"}}}}`},
		"what the server or the platform says is not the template's": {
			resources: `
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a, uid: x, ownerReferences: []}}}`,
			want: []string{
				"spec.resources[0].template.metadata.uid: must not be set in a template",
				"spec.resources[0].template.metadata.ownerReferences: must not be set in a template",
			},
		},
		"an instance does not become instances of its own type": {
			resources: `
    - {id: a, template: {apiVersion: shop.example.com/v2, kind: Website, metadata: {name: a}}}`,
			want: []string{"spec.resources[0].template.kind: an instance cannot become instances of its own type: there would be no end"},
		},
		"but of another Blueprint's": {resources: `
    - {id: a, template: {apiVersion: shop.example.com/v1, kind: Shop, metadata: {name: a}, spec: {x: "${self.spec.size}"}}}`},
		"a namespaced object may say where it is, another may not": {
			resources: `
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: x}}}
    - {id: b, template: {apiVersion: v1, kind: Namespace, metadata: {name: a, namespace: x}}}`,
			options: blueprint.Options{IsNamespaced: func(gvk schema.GroupVersionKind) (bool, bool) { return gvk.Kind == "ConfigMap", true }},
			want:    []string{"spec.resources[1].template.metadata.namespace: a Namespace is in no namespace"},
		},
		"includeWhen is decided by self": {
			resources: `
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}
    - {id: b, includeWhen: [a.data.x == 'y', self.spec.size, self.spec.live], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}}`,
			want: []string{
				"spec.resources[1].includeWhen[0]: ${a.data.x == 'y'}: refers to a: whether a resource is wanted is decided by self alone",
				"spec.resources[1].includeWhen[1]: ${self.spec.size}: is of type int, not bool",
			},
		},
		"readyWhen is decided by the resource and self": {
			resources: `
    - {id: a, readyWhen: ["${a.data.x == self.spec.name}"], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}
    - {id: b, readyWhen: [a.data.x == 'y'], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}}`,
			want: []string{"spec.resources[1].readyWhen[0]: ${a.data.x == 'y'}: refers to a: whether a resource is ready is decided by itself and self"},
		},
		"a resource does not refer to itself": {
			resources: `
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${a.metadata.uid}"}}}`,
			want: []string{"spec.resources[0].template.metadata.name: ${a.metadata.uid}: refers to the resource that it makes: that is not there yet"},
		},
		"a cycle is named, and not what only leads to it": {
			resources: `
    - {id: first, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${a.metadata.uid}"}}}
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${b.metadata.uid}"}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${c.metadata.uid}"}}}
    - {id: c, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${a.metadata.uid}"}}}`,
			want: []string{"spec.resources[1].template: refer to each other in a cycle: a -> b -> c -> a"},
		},
		"objects of a kind that is described are checked": {
			resources: `
    - {id: s, readyWhen: [s.spec.clusterIP != ''], template: {apiVersion: v1, kind: Service, metadata: {name: a}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${s.spec.clusterIq}"}, data: {x: "${s.spec.targetPort == 80}"}}}`,
			options: blueprint.Options{SchemaFor: func(gvk schema.GroupVersionKind) common.Schema {
				if gvk.Kind != "Service" {
					return nil
				}
				port := spec.StringProperty()
				port.Format = "int-or-string"
				return &openapi.Schema{Schema: &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{
					"spec": {SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{
						"clusterIP": *spec.StringProperty(), "targetPort": *port,
					}}},
				}}}}
			}},
			want: []string{"spec.resources[1].template.metadata.name: ${s.spec.clusterIq}: undefined field 'clusterIq' (line 1, column 7): did you mean clusterIP?"},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			if d := cmp.Diff(c.want, problemsOf(t, ofWebsites(c.resources), c.options)); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
		})
	}
}

func TestCompile_ofDefinitionThatIsNamed(t *testing.T) {
	const text = `
spec:
  type: {crd: websites.shop.example.com}
  resources:
    - id: a
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: "${self.spec.nome}"}}`
	made, err := blueprint.Definition(read(ofWebsites(" []")))
	if err != nil {
		t.Fatal(err)
	}
	if got := problemsOf(t, text, blueprint.Options{}); got != nil {
		t.Errorf("before there is a CustomResourceDefinition nothing is known of self, but: %q", got)
	}
	if got := problemsOf(t, text, blueprint.Options{CRD: made}); len(got) != 1 {
		t.Errorf("with the CustomResourceDefinition self is checked, but: %q", got)
	}
	made.Spec.Scope = apiextensionsv1.ClusterScoped
	namespaced := func(schema.GroupVersionKind) (bool, bool) { return true, true }
	want := "spec.resources[0].template.metadata.namespace: is required: the instance is in no namespace that a ConfigMap could be in"
	if got := problemsOf(t, text, blueprint.Options{CRD: made, IsNamespaced: namespaced}); len(got) != 2 || got[0] != want {
		t.Errorf("got %q, want %q first", got, want)
	}
}

func TestTemplates_areInOrder(t *testing.T) {
	compiled, err := blueprint.Compile(read(ofWebsites(`
    - {id: c, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${b.metadata.name + a.metadata.name}"}}}
    - {id: a, template: {apiVersion: v1, kind: Secret, metadata: {name: a}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${a.metadata.name}"}}}`)), blueprint.Options{})
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

func TestProblems_fitIntoACondition(t *testing.T) {
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
