package blueprint_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// ofSecret returns a Blueprint with a Secret, its readiness conditions, and the given resources.
func ofSecret(readyWhen, resources string) string {
	return ofWebsites("\n    - {id: db, readyWhen: [" + readyWhen +
		"], template: {apiVersion: v1, kind: Secret, metadata: {name: db}}}" + resources)
}

const observedSecret = `{apiVersion: v1, kind: Secret, metadata: {name: db, uid: u1, labels: {a: hunter2}}, data: ` +
	`{password: hunter2}, type: Opaque}`

func TestStep_hidesSecretData(t *testing.T) {
	config := func(data string) string {
		return "\n    - {id: config, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: \"" + data +
			"\"}}}"
	}
	for reason, c := range map[string]struct {
		readyWhen, resources string
		observed             map[string]string
		want                 string
		shown                bool // Values that are not from a Secret are shown.
	}{
		"an expression that cannot convert a value": {
			resources: config("${int(db.data.password)}"),
			want: "spec.resources[1].template.data.k: ${int(db.data.password)}: the reason is hidden, because the expression " +
				"reads a Secret",
		},
		"an expression that reads an optional value": {
			resources: config("${int(db.?data.password.orValue('7'))}"), want: "the reason is hidden",
		},
		"an expression that binds the value to a variable": {
			resources: config("${[db].map(x, int(x.data.password))}"), want: "the reason is hidden",
		},
		"an expression that searches for a field": {
			resources: config("${int(db[self.spec.name][self.spec.owner.email])}"), want: "the reason is hidden",
		},
		"an expression that computes a key": {
			resources: config("${dyn(self.spec.labels)[db.data.password]}"),
			want:      "config: waiting for a key or an index of a Secret, which spec.resources[1].template.data.k reads",
		},
		"a missing field": {
			resources: config("${db.data.user}"), want: "config: waiting for db.data.user, which " +
				"spec.resources[1].template.data.k reads",
		},
		"a readiness condition": {
			readyWhen: "int(db.data.password) > 1",
			want:      "db: waiting for readyWhen \"int(db.data.password) > 1\": the reason is hidden",
		},
		"an expression that reads a copy of the data": {
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
		"platform labels": {
			resources: "\n    - {id: config, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: " +
				"\"${{'platform.example.com/' + db.data.password: 'x'}}\"}}}",
			want: "spec.resources[1].template.metadata.labels: keys under platform.example.com/ must not be set in a template",
		},
		"an expression that reads only the name": {
			resources: config("${int(db.metadata.name + 'hunter2')}"), want: "hunter2", shown: true,
		},
		"invalid JSON": {
			resources: config("${json.unmarshal(db.data.password).a}"), want: "the reason is hidden",
		},
		"a key of decoded JSON": {
			resources: config("${json.unmarshal('{}')[db.data.password]}"),
			want:      "config: waiting for a key or an index of a Secret, which spec.resources[1].template.data.k reads",
		},
		"encoded data": {
			resources: config("${int(json.marshal(db.data))}"), want: "the reason is hidden",
		},
		"merged data": {
			resources: config("${int({'a': 'b'}.merge(db.data).password)}"), want: "the reason is hidden",
		},
		"deeply merged data": {
			resources: config("${int({'data': {}}.deepMerge(db).data.password)}"), want: "the reason is hidden",
		},
		"data in a list": {
			resources: config("${int(lists.setAtIndex(['a'], 0, db.data.password)[0])}"), want: "the reason is hidden",
		},
		"an expression that reads only self": {
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
				t.Errorf("the message contains the value: %s", got)
			}
		})
	}
}

func TestCompile_namesMustNotReadSecrets(t *testing.T) {
	for reason, c := range map[string]struct{ resources, want string }{
		"a name from a Secret's data": {
			`
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "a-${db.data.password}"}}}`,
			"spec.resources[1].template.metadata.name: ${db.data.password}: must not be derived from a Secret's data",
		},
		"a name from a copy of a Secret's data": {
			`
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: "${db.data.password}"}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${a.data.k}"}}}`,
			"spec.resources[2].template.metadata.name: ${a.data.k}: must not be derived from a Secret's data",
		},
		"a hash of a Secret's data": {
			`
    - {id: a, template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${'a%x'.format([hash.sha256(db.data.password)])}"}}}`,
			"spec.resources[1].template.metadata.name: ${'a%x'.format([hash.sha256(db.data.password)])}: must not be derived " +
				"from a Secret's data",
		},
		"a random string with a Secret's data as the seed": {
			`
    - {id: a, template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "a-${random.seededString(8, json.marshal(db))}"}}}`,
			"spec.resources[1].template.metadata.name: ${random.seededString(8, json.marshal(db))}: must not be derived from " +
				"a Secret's data",
		},
		"a random string with a Secret's identity as the seed": {
			`
    - {id: a, template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "a-${random.seededString(8, db.metadata.uid)}"}}}`, "",
		},
		"a namespace": {
			`
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "${db.data.password}"}}}`,
			"spec.resources[1].template.metadata.namespace: ${db.data.password}: must not be derived from a Secret's data",
		},
		"a name from a Secret's name": {
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
    - {id: hashed, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: e},
        data: {k: "${string(hash.sha256(json.marshal(db.data)))}"}}}
    - {id: vault, template: {apiVersion: example.com/v1, kind: Secret, metadata: {name: v}}}`), blueprint.Options{})
	for id, want := range map[string]bool{"db": true, "named": false, "copied": true, "asked": true, "second": true,
		"hashed": true, "other": false, "vault": false, "unknown": false} {
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
			t.Errorf("KnownField(%q) = %q, want %q", field, got, want)
		}
	}
	if got := compiled.KnownField("b", "spec"); got != "" {
		t.Errorf("for an unknown resource, got %q", got)
	}
}
