package blueprint_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

const (
	database = `
    - {id: database, includeWhen: ["self.spec.size > 100"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: database}, data: {host: h}}}`
	appOf = `
    - {id: app, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: app}, data: {host: "${%s}"}}}`
	hpa = `
    - id: hpa
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: hpa}, data: {app: "${app.metadata.name}"}}`
)

// A resource that reads an excluded one only by ? is not excluded, and gets optional.none().
func TestStep_readsExcludedResources(t *testing.T) {
	soft := fmt.Sprintf(appOf, "database.?data.?host.orValue('none')")
	for reason, c := range map[string]struct{ resources, rendered, excluded string }{
		"by ?":                     {database + soft, "app:none", "database: excluded by includeWhen"},
		"by ? before it is listed": {soft + database, "app:none", "database: excluded by includeWhen"},
		"by ? without a default": {
			database + fmt.Sprintf(appOf, "database.?data.?host"), "app:", "database: excluded by includeWhen",
		},
		"without ?": {
			database + fmt.Sprintf(appOf, "database.data.host"), "",
			"database: excluded by includeWhen\n" +
				"app: excluded because it refers to database, which is excluded by includeWhen",
		},
		"by ? below a field without ?": {
			database + fmt.Sprintf(appOf, "database.data.?host.orValue('none')"), "",
			"database: excluded by includeWhen\n" +
				"app: excluded because it refers to database, which is excluded by includeWhen",
		},
		"by has()": {
			database + fmt.Sprintf(appOf, "has(database.data) ? 'yes' : 'no'"), "",
			"database: excluded by includeWhen\n" +
				"app: excluded because it refers to database, which is excluded by includeWhen",
		},
		"in a chain": {
			database + fmt.Sprintf(appOf, "database.data.host") + hpa, "",
			"database: excluded by includeWhen\n" +
				"app: excluded because it refers to database, which is excluded by includeWhen\n" +
				"hpa: excluded because it refers to app, which refers to database, which is excluded by includeWhen",
		},
		"by a collection": {
			database + `
    - {id: app, forEach: [{tag: "${self.spec.tags}"}], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${tag}"}, data: {host: "${database.?data.?host.orValue('none')}"}}}`,
			"app:none app:none", "database: excluded by includeWhen",
		},
		"in forEach": {
			database + `
    - {id: app, forEach: [{tag: "${database.?data.?host.hasValue() ? ['h'] : ['x', 'y']}"}], template: {apiVersion: v1,
        kind: ConfigMap, metadata: {name: "${tag}"}, data: {host: "${tag}"}}}`,
			"app:x app:y", "database: excluded by includeWhen",
		},
		"a collection by index": {`
    - {id: pages, includeWhen: ["false"], forEach: [{tag: "${self.spec.tags}"}], template: {apiVersion: v1,
        kind: ConfigMap, metadata: {name: "page-${tag}"}}}` +
			fmt.Sprintf(appOf, "pages[?0].?metadata.?name.orValue('none')"), "app:none", "pages: excluded by includeWhen"},
		"a collection by its size": {`
    - {id: pages, includeWhen: ["false"], forEach: [{tag: "${self.spec.tags}"}], template: {apiVersion: v1,
        kind: ConfigMap, metadata: {name: "page-${tag}"}}}` + fmt.Sprintf(appOf, "string(pages.size())"), "",
			"pages: excluded by includeWhen\napp: excluded because it refers to pages, which is excluded by includeWhen"},
		"in includeWhen": {
			database + `
    - {id: app, includeWhen: ["database.?data.?host.orValue('none') == 'none'"], template: {apiVersion: v1,
        kind: ConfigMap, metadata: {name: app}, data: {host: x}}}`,
			"app:x", "database: excluded by includeWhen",
		},
		"in an includeWhen that is false": {
			database + `
    - {id: app, includeWhen: ["database.?data.?host.hasValue()"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: app}, data: {host: x}}}` + hpa, "",
			"database: excluded by includeWhen\napp: excluded by includeWhen\n" +
				"hpa: excluded because it refers to app, which is excluded by includeWhen",
		},
		"a reference": {`
    - id: database
      includeWhen: ["false"]
      externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}` + soft,
			"app:none", "database: excluded by includeWhen"},
		"that a condition on another resource excludes": {`
    - {id: settings, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {mode: "off"}}}
    - {id: database, includeWhen: ["settings.data.mode == 'on'"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: database}, data: {host: h}}}` + soft + hpa, "settings: app:none hpa:",
			"database: excluded by includeWhen"},
	} {
		t.Run(reason, func(t *testing.T) {
			s := settled(t, compile(t, ofWebsites(c.resources), blueprint.Options{}))
			var rendered, excluded []string
			for _, r := range s.Rendered {
				data, _ := r.Object.Object["data"].(map[string]any)
				host, _ := data["host"].(string)
				rendered = append(rendered, r.ID+":"+host)
			}
			for _, e := range s.Excluded {
				excluded = append(excluded, e.ID+": "+e.Reason())
			}
			if d := cmp.Diff(c.rendered, strings.Join(rendered, " ")); d != "" {
				t.Errorf("rendered (-want +got):\n%s\nwaiting: %v, problems: %v", d, s.Waiting, s.Problems)
			}
			if d := cmp.Diff(c.excluded, strings.Join(excluded, "\n")); d != "" {
				t.Errorf("excluded (-want +got):\n%s", d)
			}
		})
	}
}

// settled repeats steps until all rendered objects exist.
func settled(t *testing.T, compiled *blueprint.Compiled) (s blueprint.Step) {
	t.Helper()
	observed := map[string]*unstructured.Unstructured{}
	for before := -1; before < len(observed); {
		before = len(observed)
		var err error
		if s, err = compiled.Instance(object(flowers)).Step(t.Context(), observed); err != nil {
			t.Fatal(err)
		}
		for _, r := range s.Rendered {
			observed[r.Key] = r.Object
		}
	}
	return s
}

// The status can read excluded resources by ?, too.
func TestStep_reportsExcludedResources(t *testing.T) {
	compiled := compile(t, strings.Replace(ofWebsites(database), "    kind: Website\n", `    kind: Website
    status:
      soft: "${database.?data.?host.orValue('none')}"
      optional: "${database.?data.?host}"
      hard: "${database.data.host}"
    conditions:
      - {type: Soft, status: "database.?data.?host.orValue('none') == 'none'"}
      - {type: Hard, status: "database.data.host == 'h'"}
`, 1), blueprint.Options{})
	report := settled(t, compiled).Report
	want := map[string]any{"soft": "none", "optional": nil, "hard": nil}
	if d := cmp.Diff(want, report.Fields); d != "" || len(report.Problems) > 0 {
		t.Errorf("fields (-want +got):\n%s\nproblems: %v", d, report.Problems)
	}
	for i, want := range []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionUnknown} {
		if got := report.Conditions[i]; got.Status != want {
			t.Errorf("condition %s is %s, want %s", got.Type, got.Status, want)
		}
	}
}

func TestExclusions_ListsResourcesThatDoNotSayWhenTheyAreExcluded(t *testing.T) {
	const same = `includeWhen: ["self.spec.size > 100"], template`
	hard := fmt.Sprintf(appOf, "database.data.host")
	for reason, c := range map[string]struct{ resources, want string }{
		"no reference":              {database + fmt.Sprintf(appOf, "x"), ""},
		"by ?":                      {database + fmt.Sprintf(appOf, "database.?data.?host.orValue('x')"), ""},
		"an unconditional resource": {fmt.Sprintf(appOf, "x") + hpa, ""},
		"a reference":               {database + hard, "app through database by template.data.host"},
		"a chain": {database + hard + hpa,
			"app through database by template.data.host, hpa through app by template.data.app"},
		"the same condition": {database + strings.Replace(hard, "template", same, 1), ""},
		"the same condition, and ${}": {
			database + strings.Replace(hard, "template", `includeWhen: ["${self.spec.size > 100}"], template`, 1), "",
		},
		"another condition": {database + strings.Replace(hard, "template", `includeWhen: [self.spec.live], template`, 1),
			"app through database by template.data.host"},
	} {
		resources := strings.ReplaceAll(c.resources, "${x}", "x")
		var got []string
		for _, e := range compile(t, ofWebsites(resources), blueprint.Options{}).Exclusions() {
			_, path, _ := strings.Cut(e.Path, "].")
			got = append(got, e.ID+" through "+e.Through+" by "+path)
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: got %q, want %q", reason, got, c.want)
		}
	}
}
