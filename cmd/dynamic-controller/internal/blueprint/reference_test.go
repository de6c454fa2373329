package blueprint_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// referring returns a resource with the id settings that refers to a ConfigMap by the given metadata.
func referring(metadata string) string {
	return "\n    - {id: settings, externalRef: {apiVersion: v1, kind: ConfigMap, metadata: " + metadata + "}}"
}

func TestCompile_references(t *testing.T) {
	const at = "spec.resources[0].externalRef"
	for reason, c := range map[string]struct{ resource, want string }{
		"a name":            {referring("{name: shared}"), ""},
		"a computed name":   {referring(`{name: "${self.spec.name}-settings"}`), ""},
		"a selector":        {referring(`{selector: {matchLabels: {team: "${self.spec.name}", a/b: c}}}`), ""},
		"an empty selector": {referring(`{selector: {}}`), ""},
		"expressions in a selector": {
			referring(`{selector: {matchExpressions: [{key: a, operator: In, values: [b, "${self.spec.name}"]}]}}`), "",
		},
		"a name that is not a string": {
			referring(`{name: "${self.spec.size}"}`), at + ".metadata.name: ${self.spec.size}: must be a string, not an integer",
		},
		"a label that is not a string": {
			referring(`{selector: {matchLabels: {a: "${self.spec.tags}"}}}`),
			at + ".metadata.selector.matchLabels.a: ${self.spec.tags}: must be a string, not list(string)",
		},
		"an invalid label": {
			referring("{selector: {matchLabels: {a: b c}}}"),
			at + ".metadata.selector.matchLabels.a: values[0][a]: Invalid value",
		},
		"an invalid operator": {
			referring("{selector: {matchExpressions: [{key: a, operator: Near}]}}"),
			at + ".metadata.selector.matchExpressions[0]: \"Near\" is not a valid label selector operator",
		},
		"an expression in the key of a label": {
			referring(`{selector: {matchLabels: {"${self.spec.name}": b}}}`), "keys must not contain expressions",
		},
		"a computed namespace": {
			referring(`{name: a, namespace: "${self.spec.name}"}`),
			at + ".metadata.namespace: ${self.spec.name}: can be computed only if spec.allowedNamespaces lists the " +
				"allowed namespaces",
		},
		"a name that is too long": {
			referring(`{name: "` + strings.Repeat("x", blueprint.MaxTemplateBytes) + `"}`), at + ": has more than 131072 bytes",
		},
		"a computed kind": {
			`
    - {id: settings, externalRef: {apiVersion: v1, kind: "${self.spec.name}", metadata: {name: a}}}`,
			at + ".kind: must not contain expressions",
		},
		"no kind": {
			`
    - {id: settings, externalRef: {apiVersion: v1, metadata: {name: a}}}`,
			at + ".kind: is required and must be a string",
		},
		"the Blueprint's own type": {
			`
    - {id: settings, externalRef: {apiVersion: shop.example.com/v1, kind: Website, metadata: {name: a}}}`,
			at + ".kind: must not be the Blueprint's own type",
		},
		"a cluster-scoped kind": {
			`
    - {id: settings, externalRef: {apiVersion: v1, kind: Namespace, metadata: {name: a}}}`, "",
		},
		"a namespace for a cluster-scoped kind": {
			`
    - {id: settings, externalRef: {apiVersion: v1, kind: Namespace, metadata: {name: a, namespace: b}}}`,
			at + ".metadata.namespace: must not be set, because Namespace is cluster-scoped",
		},
		"a reference in a cycle": {
			referring(`{name: "${child.metadata.name}"}`) + `
    - {id: child, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: "${settings.data.k}"}}}`,
			"refers to itself in a cycle: settings -> child -> settings",
		},
		"a reference with forEach": {
			strings.Replace(referring(`{name: "${tag}"}`), "id: settings", "id: settings, forEach: ["+tags+"]", 1),
			"spec.resources[0].forEach: must not be set with externalRef; use a selector to refer to several objects",
		},
		"a variable of a collection in includeWhen": {
			referring("{name: a}") + `
    - {id: pages, forEach: [` + tags + `], includeWhen: ["settings.data[tag] == 'on'"], template: {apiVersion: v1,
        kind: ConfigMap, metadata: {name: "${tag}"}}}`,
			`spec.resources[1].includeWhen[0]: ${settings.data[tag] == 'on'}: unknown name "tag"`,
		},
		"a label from a Secret's data": {
			`
    - {id: vault, externalRef: {apiVersion: v1, kind: Secret, metadata: {name: vault}}}` +
				referring(`{selector: {matchLabels: {a: "${vault.data.a}"}}}`),
			"spec.resources[1].externalRef.metadata.selector.matchLabels.a: ${vault.data.a}: must not be derived from a " +
				"Secret's data",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			got := problemsOf(t, ofWebsites(c.resource), blueprint.Options{IsNamespaced: scopes})
			if c.want == "" && got != nil || c.want != "" && !strings.Contains(strings.Join(got, "\n"), c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	got := problemsOf(t, ofWebsites(referring("{name: a, namespace: elsewhere}")),
		blueprint.Options{IsNamespaced: scopes, Namespaces: []string{"shop"}})
	const want = at + `.metadata.namespace: namespace "elsewhere" is not listed in --namespaces`
	if len(got) != 1 || !strings.Contains(got[0], want) {
		t.Errorf("in a namespace that is not in --namespaces: got %q", got)
	}
}

// The variable of a reference has the type of its kind, or a list of that type.
func TestCompile_referenceTypes(t *testing.T) {
	options := describing(t, definitionOf(t, crates))
	crate := func(metadata, expression string) string {
		return ofWebsites(`
    - {id: crate, externalRef: {apiVersion: shop.example.com/v1, kind: Crate, metadata: ` + metadata + `}}
    - {id: page, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: "${` + expression + `}"}}}`)
	}
	for reason, c := range map[string]struct{ metadata, expression, want string }{
		"a field":            {"{name: a}", "crate.spec.color", ""},
		"an unknown field":   {"{name: a}", "crate.spec.colour", `unknown field "colour"`},
		"a field of an item": {"{selector: {}}", "crate.map(c, c.spec.color).join(',')", ""},
		"an unknown field of an item": {
			"{selector: {}}", "crate.map(c, c.spec.colour).join(',')", "undefined field 'colour'",
		},
		"a field of the list": {"{selector: {}}", "crate.spec.color", "does not support field selection"},
	} {
		got := strings.Join(problemsOf(t, crate(c.metadata, c.expression), options), "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", reason, got, c.want)
		}
	}
}

// lookups maps ids to the results of a [blueprint.Lookup], each a list of objects or an error. It records the
// references.
type lookups struct {
	results map[string]any
	asked   []string
}

func (l *lookups) lookUp(_ context.Context, r blueprint.Reference) ([]*unstructured.Unstructured, error) {
	asked := r.String()
	if r.Selector != nil {
		asked += fmt.Sprintf("?%s", r.Selector)
	}
	l.asked = append(l.asked, asked)
	switch result := l.results[r.ID].(type) {
	case error:
		return nil, result
	case []string:
		var objects []*unstructured.Unstructured
		for _, text := range result {
			objects = append(objects, object(text))
		}
		return objects, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{}, r.Name)
}

// stepWith returns a step of an instance that uses these lookups.
func stepWith(
	t *testing.T, compiled *blueprint.Compiled, l *lookups, observed map[string]*unstructured.Unstructured,
) blueprint.Step {
	t.Helper()
	s, err := compiled.Instance(object(flowers)).WithLookup(l.lookUp).Step(t.Context(), observed)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// summary describes the state of all resources.
func summary(s blueprint.Step) string {
	var rendered []string
	for _, r := range s.Rendered {
		rendered = append(rendered, r.ID)
	}
	return fmt.Sprintf("rendered %v, referenced %v, waiting %v, unready %v, excluded %v, problems %v", rendered,
		s.Referenced, s.Waiting, s.Unready, s.Excluded, []blueprint.Problem(s.Problems))
}

const settings = "{metadata: {name: shared}, data: {text: roses, mode: 'on'}}"

func TestStep_references(t *testing.T) {
	copying := func(expression string) string {
		return "\n    - {id: page, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: \"${" +
			expression + "}\"}}}"
	}
	named := referring("{name: shared}") + copying("settings.data.text")
	for reason, c := range map[string]struct {
		resources string
		result    any
		asked     []string
		data      any    // the object of settings, or nil
		want      string // expected in the summary
	}{
		"an object": {named, []string{settings}, []string{"ConfigMap shop/shared"}, "roses", "referenced [settings]"},
		"an object that does not exist": {
			named, nil, []string{"ConfigMap shop/shared"}, nil,
			"waiting [page: waiting for settings], unready [settings: ConfigMap shop/shared does not exist]",
		},
		"an object that cannot be read": {
			named, errors.New("no answer"), []string{"ConfigMap shop/shared"}, nil,
			"waiting [page: waiting for settings], unready [settings: no answer]",
		},
		"an object that cannot be used": {
			named, &blueprint.UnusableError{Reason: "is too large"}, []string{"ConfigMap shop/shared"}, nil,
			"waiting [page: waiting for settings, which has an error], unready [], excluded [], " +
				"problems [spec.resources[0].externalRef: is too large]",
		},
		"a value that does not exist": {
			referring("{name: shared}") + copying("settings.data.other"), []string{settings}, []string{"ConfigMap shop/shared"},
			nil, "waiting [page: waiting for settings.data.other, which spec.resources[1].template.data.k reads]",
		},
		"an object that is not ready": {
			strings.Replace(named, "id: settings", "id: settings, readyWhen: [\"settings.data.mode == 'off'\"]", 1),
			[]string{settings}, []string{"ConfigMap shop/shared"}, nil,
			`unready [settings: waiting for readyWhen "settings.data.mode == 'off'"]`,
		},
		"a list": {
			referring(`{selector: {matchLabels: {team: "${self.spec.name}"}}}`) + copying(
				"settings.map(s, s.data.text).join()"),
			[]string{settings, settings}, []string{"ConfigMap shop/?team=Flowers"}, "rosesroses", "referenced [settings]",
		},
		"an empty list": {
			referring(`{selector: {}}`) + copying("string(size(settings))"), []string{}, []string{"ConfigMap shop/?"}, "0",
			"referenced [settings]",
		},
		"a list that is not ready": {
			strings.Replace(referring(`{selector: {}}`), "id: settings", "id: settings, readyWhen: [size(settings) > 1]", 1),
			[]string{settings}, []string{"ConfigMap shop/?"}, nil,
			`unready [settings: waiting for readyWhen "size(settings) > 1"]`,
		},
		"a cluster-scoped kind": {
			`
    - {id: settings, externalRef: {apiVersion: v1, kind: Namespace, metadata: {name: a}}}`,
			[]string{settings}, []string{"Namespace a"}, nil, "unready []",
		},
		"a namespace": {
			referring(`{name: a, namespace: "${self.spec.tags[0]}-far"}`), []string{settings},
			[]string{"ConfigMap a-far/a"}, nil, "unready []",
		},
		"a namespace that is not allowed": {
			referring(`{name: a, namespace: "${self.spec.tags[0]}-other"}`), nil, nil, nil,
			`namespace "a-other" does not match spec.allowedNamespaces`,
		},
		"an invalid name": {
			referring(`{name: "../${self.spec.name}"}`), nil, nil, nil,
			`problems [spec.resources[0].externalRef.metadata.name: "../Flowers" is not a valid object name]`,
		},
		"an invalid label": {
			referring(`{selector: {matchLabels: {team: "${self.spec.name + ',!a'}"}}}`), nil, nil, nil,
			"problems [spec.resources[0].externalRef.metadata.selector.matchLabels.team: values[0][team]: Invalid value: " +
				`"Flowers,!a"`,
		},
		"a name from another resource": {
			referring(`{name: "${base.metadata.name}"}`) + `
    - {id: base, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}`, nil, nil, nil,
			"waiting [settings: waiting for base], unready [base: does not exist yet]",
		},
		"an excluded reference": {
			strings.Replace(named, "id: settings", "id: settings, includeWhen: [self.spec.size > 2]", 1), nil, nil, nil,
			"waiting [], unready [], excluded [settings page]",
		},
		"an excluded reference to the object of another resource": {
			strings.Replace(named, "id: settings", "id: settings, includeWhen: [self.spec.size > 2]", 1) + `
    - {id: base, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}`, nil, nil, nil,
			"excluded [settings page]",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			compiled := compile(t, allowingNamespaces(ofWebsites(c.resources), "*-far"),
				blueprint.Options{IsNamespaced: scopes})
			l := &lookups{results: map[string]any{"settings": c.result}}
			s := stepWith(t, compiled, l, nil)
			if got := summary(s); !strings.Contains(got, c.want) || !slices.Equal(l.asked, c.asked) {
				t.Errorf("got %s, want %s; looked up %q, want %q", got, c.want, l.asked, c.asked)
			}
			if c.data == nil {
				return
			}
			if len(s.Rendered) != 1 || s.Rendered[0].Object.Object["data"].(map[string]any)["k"] != c.data {
				t.Errorf("rendered %v, want %v", s.Rendered, c.data)
			}
		})
	}
}

// The objects that match a selector are the items of a collection.
func TestStep_collectionsOfReferences(t *testing.T) {
	compiled := compile(t, ofWebsites(referring("{selector: {}}")+`
    - {id: pages, forEach: [{found: "${settings}"}], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${found.metadata.name}-copy"}, data: {k: "${found.data.text}"}}}`), blueprint.Options{})
	const tulips = "{metadata: {name: other}, data: {text: tulips}}"
	for reason, c := range map[string]struct {
		result any
		want   string
	}{
		"two objects": {
			[]string{settings, tulips},
			"rendered [pages/shop/shared-copy=roses pages/shop/other-copy=tulips] waiting [] unready [pages: 2 of 2 are not",
		},
		"an empty list": {[]string{}, "rendered [] waiting [] unready [] ready"},
		"a list that cannot be read": {
			errors.New("no answer"), "rendered [] waiting [pages: waiting for settings] unready [settings: no answer]",
		},
		"an object without the value that is read": {
			[]string{settings, "{metadata: {name: other}}"},
			"rendered [] waiting [pages: waiting for found.data, which spec.resources[1].template.data.k reads] unready []",
		},
	} {
		s := stepWith(t, compiled, &lookups{results: map[string]any{"settings": c.result}}, nil)
		if got := stepOf(s); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: got %s, want %s", reason, got, c.want)
		}
	}
}

// Instances record only the kinds of their children.
func TestKinds_omitsReferences(t *testing.T) {
	compiled := compile(t, ofWebsites(`
    - {id: vault, externalRef: {apiVersion: v1, kind: Secret, metadata: {name: a}}}
    - {id: page, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${vault.metadata.name}"}}}`),
		blueprint.Options{})
	if got := fmt.Sprint(compiled.Kinds()); got != "[/v1, Kind=ConfigMap]" {
		t.Errorf("got %s", got)
	}
	templates := compiled.Templates()
	if len(templates) != 2 || !templates[0].Reference || templates[1].Reference ||
		!slices.Equal(templates[1].Needs, []string{"vault"}) {
		t.Errorf("got %+v", templates)
	}
}
