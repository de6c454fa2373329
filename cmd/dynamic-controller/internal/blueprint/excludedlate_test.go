package blueprint_test

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

func TestCompile_includeWhenReadsResources(t *testing.T) {
	for reason, c := range map[string]struct{ resources, want string }{
		"another resource": {referring("{name: a}") + `
    - {id: a, includeWhen: ["settings.data.mode == 'on'"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: a}}}`,
			""},
		"the resource itself": {`
    - {id: a, includeWhen: ["a.data.mode == 'on'"], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}`,
			"spec.resources[0].includeWhen[0]: ${a.data.mode == 'on'}: must not refer to the resource itself"},
		"a cycle": {`
    - {id: a, includeWhen: ["has(b.data)"], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}, data: {k: "${a.metadata.uid}"}}}`,
			"refers to itself in a cycle: a -> b -> a"},
		"not a bool": {referring("{name: a}") + `
    - {id: a, includeWhen: [size(settings.metadata.name)], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: a}}}`,
			"must be a boolean, not an integer"},
	} {
		got := strings.Join(problemsOf(t, ofWebsites(c.resources), blueprint.Options{}), "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", reason, got, c.want)
		}
	}
}

func TestStep_includeWhenReadsResources(t *testing.T) {
	const included = `
    - {id: page, includeWhen: ["settings.data.mode == 'on'"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: a}}}`
	mode := func(mode string) []string {
		return []string{"{metadata: {name: shared}, data: {mode: '" + mode + "'}}"}
	}
	for reason, c := range map[string]struct {
		resources string
		result    any
		observed  string // the object of resource base
		want      string
	}{
		"the resource is wanted": {included, mode("on"), "", "rendered [page]"},
		"the resource is not wanted": {
			included, mode("off"), "", "rendered [], referenced [settings], waiting [], unready [], excluded [page]",
		},
		"the object does not exist": {included, nil, "", "waiting [page: waiting for settings]"},
		"the value does not exist": {
			included, []string{"{metadata: {name: shared}}"}, "",
			"waiting [page: waiting for settings.data, which spec.resources[1].includeWhen[0] reads]",
		},
		"the condition fails": {
			strings.Replace(included, "settings.data.mode == 'on'", "10 / int(settings.data.mode) > 0", 1), mode("0"), "",
			"problems [spec.resources[1].includeWhen[0]: ${10 / int(settings.data.mode) > 0}: division by zero]",
		},
		"a condition that reads only self is evaluated first": {
			strings.Replace(included, "includeWhen: [", "includeWhen: [self.spec.size > 2, ", 1), nil, "", "excluded [page]",
		},
		"another resource refers to the excluded one": {
			included + `
    - {id: other, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b},
        data: {k: "${page.metadata.name}"}}}`,
			mode("off"), "", "excluded [page other]",
		},
		"the resource also refers to one that is not ready": {
			strings.Replace(included, "name: a}", `name: "${base.metadata.name}"}`, 1) + `
    - {id: base, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}}`, mode("off"), "",
			"rendered [base], referenced [settings], waiting [], unready [base: does not exist yet], excluded [page]",
		},
		"a collection that is wanted": {
			`
    - {id: pages, forEach: [` + tags + `], includeWhen: ["settings.data.mode == 'on'"], template: {apiVersion: v1,
        kind: ConfigMap, metadata: {name: "${tag}"}}}`,
			mode("on"), "", "rendered [pages pages]",
		},
		"a collection that is not wanted": {
			`
    - {id: pages, forEach: [` + tags + `], includeWhen: ["settings.data.mode == 'on'"], template: {apiVersion: v1,
        kind: ConfigMap, metadata: {name: "${tag}"}}}`,
			mode("off"), "", "rendered [], referenced [settings], waiting [], unready [], excluded [pages]",
		},
		"a collection whose condition cannot be evaluated yet": {
			`
    - {id: pages, forEach: [` + tags + `], includeWhen: ["settings.data.mode == 'on'"], template: {apiVersion: v1,
        kind: ConfigMap, metadata: {name: "${tag}"}}}`,
			nil, "", "rendered [], referenced [settings], waiting [pages: waiting for settings]",
		},
		"the condition reads a collection": {
			strings.Replace(included, "settings.data.mode == 'on'", "size(pages) > 0", 1) + `
    - {id: pages, forEach: [{tag: "${[1].filter(i, i > 1)}"}], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "a${tag}"}}}`,
			nil, "", "waiting [], unready [settings: ConfigMap shop/shared does not exist], excluded [page]",
		},
		"the condition reads an excluded resource": {
			strings.Replace(included, "settings.data.mode", "base.data.mode", 1) + `
    - {id: base, includeWhen: ["settings.data.mode == 'on'"], template: {apiVersion: v1, kind: Secret,
        metadata: {name: b}}}`, mode("off"), "", "excluded [base page]",
		},
		"the condition reads a child": {
			strings.Replace(included, "settings.data.mode", "base.data.mode", 1) + `
    - {id: base, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}}`, mode("off"),
			"{metadata: {name: b}, data: {mode: 'off'}}", "rendered [base], referenced [settings], waiting [], unready [], " +
				"excluded [page]",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			observed := map[string]*unstructured.Unstructured{}
			if c.observed != "" {
				observed["base"] = object(c.observed)
			}
			compiled := compile(t, ofWebsites(referring("{name: shared}")+c.resources), blueprint.Options{})
			s := stepWith(t, compiled, &lookups{results: map[string]any{"settings": c.result}}, observed)
			if got := summary(s); !strings.Contains(got, c.want) {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// Templates whose conditions exclude each other can describe the same object.
func TestStep_namesOfResourcesExcludedLater(t *testing.T) {
	either := func(more string) string {
		return referring("{name: shared}") + `
    - {id: open, includeWhen: ["settings.data.mode == 'on'"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: a}}}
    - {id: closed, includeWhen: ["settings.data.mode == 'off'"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: a}` + more + `}}`
	}
	const base = `
    - {id: base, template: {apiVersion: v1, kind: Secret, metadata: {name: b}}}`
	const extra = `
    - {id: extra, externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {name: extra}}}`
	for reason, c := range map[string]struct{ resources, mode, want string }{
		"the other is rendered": {either(""), "off", "open="},
		"the other waits":       {either(`, data: {k: "${base.metadata.uid}"}`) + base, "off", "open="},
		"both are excluded":     {either(""), "neither", "open=a closed=a"},
		"two collections share an object": {referring("{name: shared}") + `
    - {id: pages, forEach: [` + tags + `], includeWhen: ["settings.data.mode == 'on'"], template: {apiVersion: v1,
        kind: ConfigMap, metadata: {name: "${tag}"}}}` + included("closed", "a"), "off", "pages=b"},
		"a collection whose list is an excluded reference": {referring("{name: shared}") + `
    - {id: found, includeWhen: ["settings.data.mode == 'on'"], externalRef: {apiVersion: v1, kind: ConfigMap,
        metadata: {selector: {}}}}
    - {id: pages, forEach: [{f: "${found}"}], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${f.metadata.name}"}}}`, "off", "found= pages="},
		"a reference has no object to delete": {referring("{name: shared}") + `
    - {id: named, includeWhen: ["settings.data.mode == 'on'"], externalRef: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: a}}}`, "off", "named="},
		"a collection whose list is a reference": {referring("{name: shared}") + `
    - {id: found, externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {selector: {}}}}
    - {id: pages, forEach: [{f: "${found}"}], includeWhen: ["settings.data.mode == 'on'"], template: {apiVersion: v1,
        kind: ConfigMap, metadata: {name: "${f.metadata.name}-x"}}}`, "off", "pages=c-xd-x"},
		"the other has another name": {
			referring("{name: shared}") + included("closed", "a") + included("open", "b"), "off", "open=b",
		},
		"the other waits for its name": {strings.ReplaceAll(either(
			`, data: {k: "${extra.metadata.uid}"}`), "name: a}", `name: "${settings.metadata.name}"}`) + extra, "off", "open="},
		"a collection waits for the list of its items": {referring("{name: shared}") + included("open", "c") + extra + `
    - {id: pages, forEach: [{item: "${extra.data.items}"}], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${item}"}}}`, "off", "open="},
		"a resource of another kind waits for its name": {referring("{name: shared}") + included("open", "c") + extra + `
    - {id: secret, template: {apiVersion: v1, kind: Secret, metadata: {name: "${extra.metadata.name}"}}}`,
			"off", "open=c"},
	} {
		compiled := compile(t, ofWebsites(c.resources), blueprint.Options{})
		s := stepWith(t, compiled, &lookups{results: map[string]any{
			"extra":    errors.New("no answer"),
			"settings": []string{"{metadata: {name: shared}, data: {mode: '" + c.mode + "'}}"},
			"found":    []string{"{metadata: {name: c}}", "{metadata: {name: d}}"},
		}}, nil)
		var got []string
		for _, e := range s.Excluded {
			text := e.ID + "="
			for _, name := range e.Names {
				text += name.Name
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: excluded %q, want %q", reason, got, c.want)
		}
	}
}

// included returns a ConfigMap that is wanted while the mode is on, for the id open, or off, for the id closed.
func included(id, name string) string {
	mode := map[string]string{"open": "on", "closed": "off"}[id]
	return "\n    - {id: " + id + ", includeWhen: [\"settings.data.mode == '" + mode + "'\"], template: " +
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + "}}}"
}
