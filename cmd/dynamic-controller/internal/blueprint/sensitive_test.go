package blueprint_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// ofSecret is a Blueprint whose instances become a Secret, with the readiness conditions, and these resources.
func ofSecret(readyWhen, resources string) string {
	return ofWebsites("\n    - {id: db, readyWhen: [" + readyWhen +
		"], template: {apiVersion: v1, kind: Secret, metadata: {name: db}}}" + resources)
}

const observedSecret = `{apiVersion: v1, kind: Secret, metadata: {name: db, uid: u1, labels: {a: hunter2}}, data: ` +
	`{password: hunter2}, type: Opaque}`

func TestStep_withholdsDataOfSecrets(t *testing.T) {
	config := func(data string) string {
		return "\n    - {id: config, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: \"" + data +
			"\"}}}"
	}
	for reason, c := range map[string]struct {
		readyWhen, resources string
		observed             map[string]string
		want                 string
		shown                bool // the value is shown, because it is not of a Secret
	}{
		"an expression that cannot convert a value": {
			resources: config("${int(db.data.password)}"),
			want: "spec.resources[1].template.data.k: ${int(db.data.password)}: the reason is hidden, because the expression " +
				"reads a Secret",
		},
		"one that reads it in an optional way": {
			resources: config("${int(db.?data.password.orValue('7'))}"), want: "the reason is hidden",
		},
		"one that reads it by another name": {
			resources: config("${[db].map(x, int(x.data.password))}"), want: "the reason is hidden",
		},
		"one that finds its field": {
			resources: config("${int(db[self.spec.name][self.spec.owner.email])}"), want: "the reason is hidden",
		},
		"one that looks up a value": {
			resources: config("${dyn(self.spec.labels)[db.data.password]}"),
			want:      "config: waiting for a key or an index of a Secret, which spec.resources[1].template.data.k reads",
		},
		"a field that is not there": {
			resources: config("${db.data.user}"), want: "config: waiting for db.data.user, which " +
				"spec.resources[1].template.data.k reads",
		},
		"a readiness condition": {
			readyWhen: "int(db.data.password) > 1",
			want:      "db: waiting for readyWhen \"int(db.data.password) > 1\": the reason is hidden",
		},
		"an expression that reads what was made of it": {
			resources: config("${db.data.password}") +
				"\n    - {id: last, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}, data: {k: " +
				"\"${int(config.data.k)}\"}}}",
			observed: map[string]string{"config": "{metadata: {name: a}, data: {k: hunter2}}"},
			want:     "spec.resources[2].template.data.k: ${int(config.data.k)}: the reason is hidden",
		},
		"the keys of labels": {
			resources: "\n    - {id: config, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: " +
				"\"${{db.data.password: 1}}\"}}}",
			want: "spec.resources[1].template.metadata.labels: must be a map of strings",
		},
		"labels of the platform": {
			resources: "\n    - {id: config, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: " +
				"\"${{'platform.example.com/' + db.data.password: 'x'}}\"}}}",
			want: "spec.resources[1].template.metadata.labels: keys under platform.example.com/ must not be set in a template",
		},
		"an expression that reads its name alone": {
			resources: config("${int(db.metadata.name + 'hunter2')}"), want: "hunter2", shown: true,
		},
		"an expression of self": {
			resources: config("${int(self.spec.name + 'hunter2')}"), want: "hunter2", shown: true,
		},
	} {
		t.Run(reason, func(t *testing.T) {
			observed := map[string]string{"db": observedSecret}
			for id, text := range c.observed {
				observed[id] = text
			}
			compiled := compile(t, ofSecret(c.readyWhen, c.resources), blueprint.Options{IsNamespaced: scopes})
			s := step(t, compiled, strings.Replace(flowers, "name: Flowers", "name: data, owner: {email: password}, labels: "+
				"{x: y}", 1), observed)
			got := fmt.Sprint(s.Problems, s.Waiting, s.Unready)
			if !strings.Contains(got, c.want) {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if !c.shown && strings.Contains(got, "hunter2") {
				t.Errorf("the value is shown: %s", got)
			}
		})
	}
}

func TestCompile_namesAreNotSecret(t *testing.T) {
	for reason, c := range map[string]struct{ resources, want string }{
		"a name of a Secret's data": {
			`
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "a-${db.data.password}"}}}`,
			"spec.resources[1].template.metadata.name: ${db.data.password}: must not be derived from a Secret's data",
		},
		"a name of what was made of it": {
			`
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: "${db.data.password}"}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${a.data.k}"}}}`,
			"spec.resources[2].template.metadata.name: ${a.data.k}: must not be derived from a Secret's data",
		},
		"a namespace": {
			`
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "${db.data.password}"}}}`,
			"spec.resources[1].template.metadata.namespace: ${db.data.password}: must not be derived from a Secret's data",
		},
		"a name of a Secret's name": {
			`
    - {id: a, template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${db.metadata.name}-${db.metadata.uid}"}}}`, "",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			got := strings.Join(problemsOf(t, allowingNamespaces(ofSecret("", c.resources), "*"), blueprint.Options{}), "\n")
			if got != c.want && (c.want == "" || !strings.HasPrefix(got, c.want)) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestIsSensitive(t *testing.T) {
	compiled := compile(t, ofSecret("", `
    - {id: named, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: "${db.metadata.name}"}}}
    - {id: copied, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}, data: "${db.data}"}}
    - {id: asked, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: c},
        data: {k: "${string(has(db.data.password))}"}}}
    - {id: second, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: d},
        data: {k: "${copied.data.password}"}}}
    - {id: other, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${copied.metadata.name}-x"},
        data: {k: "${named.data.k}"}}}
    - {id: vault, template: {apiVersion: example.com/v1, kind: Secret, metadata: {name: v}}}`), blueprint.Options{})
	for id, want := range map[string]bool{"db": true, "named": false, "copied": true, "asked": true, "second": true,
		"other": false, "vault": false, "unknown": false} {
		if got := compiled.IsSensitive(id); got != want {
			t.Errorf("IsSensitive(%s) = %t", id, got)
		}
	}
}

func TestKnownField(t *testing.T) {
	compiled := compile(t, ofWebsites(`
    - id: a
      template:
        apiVersion: v1
        kind: Service
        metadata: {name: a, labels: "${self.spec.labels}", annotations: {a.b/c: "${self.spec.name}"}}
        spec: {type: "${self.spec.name}", ports: [{port: 80, name: "a-${self.spec.name}"}],
          selector: {app: x}}`), blueprint.Options{})
	for field, want := range map[string]string{
		"spec.type":                           "spec.type",
		".spec.type":                          "spec.type",
		"spec.type.more":                      "spec.type",
		"spec.ports[0].port":                  "spec.ports[0].port",
		"spec.ports[0].nodePort":              "spec.ports[0].nodePort",
		"spec.ports[0].name.x":                "spec.ports[0].name",
		"spec.ports[7].port":                  "spec.ports",
		"spec.selector[app]":                  "spec.selector[app]",
		"spec.clusterIPs[0]":                  "spec.clusterIPs",
		"metadata.labels[hunter2]":            "metadata.labels",
		"metadata.labels.hunter2":             "metadata.labels",
		"metadata.annotations[a.b/c]":         "metadata.annotations[a.b/c]",
		"metadata.deletionGracePeriodSeconds": "metadata.deletionGracePeriodSeconds",
		"":                                    "",
		"[":                                   "",
	} {
		if got := compiled.KnownField("a", field); got != want {
			t.Errorf("%q is %q, want %q", field, got, want)
		}
	}
	if got := compiled.KnownField("b", "spec"); got != "" {
		t.Errorf("of an unknown resource it is %q", got)
	}
}
