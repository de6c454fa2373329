package blueprint_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

func TestReadiness_byDefault(t *testing.T) {
	const outdated = "waiting for its controller to observe the newest generation"
	deployment := func(status string) string {
		return "{metadata: {generation: 2}, spec: {replicas: 3}, status: {observedGeneration: 2, " + status + "}}"
	}
	statefulSet := func(spec, status string) string {
		return "{metadata: {generation: 2}, spec: {replicas: 3, " + spec + "}, status: {observedGeneration: 2, " + status +
			"}}"
	}
	condition := func(fields string) string { return "{status: {conditions: [{" + fields + "}]}}" }
	for _, c := range []struct{ kind, object, want string }{
		{"v1 ConfigMap", `{}`, ""},
		{"v1 ConfigMap", `{status: {}}`, ""},
		{"v1 ConfigMap", `{status: {conditions: null}}`, ""},
		{"a.b/v1 Thing", `{status: {phase: Pending}}`, ""},
		{"a.b/v1 Thing", condition(`type: Synced, status: "False"`), ""},
		{"a.b/v1 Thing", condition(`type: Ready, status: "True"`), ""},
		{"a.b/v1 Thing", condition(`type: Ready, status: "False"`), "waiting for the condition Ready"},
		{"a.b/v1 Thing", condition(`type: Ready, status: Unknown, reason: Starting`),
			"waiting for the condition Ready (Starting)"},
		{"a.b/v1 Thing", condition(`type: Ready, status: "True"}, {type: Stalled, status: "True", reason: Quota`),
			"waiting for the condition Stalled to become False (Quota)"},
		{"a.b/v1 Thing", condition(`type: Ready, status: "True"}, {type: Reconciling, status: "True"`),
			"waiting for the condition Reconciling to become False"},
		{"a.b/v1 Thing", `{metadata: {generation: 2}, status: {observedGeneration: 1}}`, outdated},
		{"a.b/v1 Thing", `{metadata: {generation: 2}, status: {observedGeneration: 2}}`, ""},
		{"a.b/v1 Thing", `{metadata: {generation: 2}, status: {conditions: [{type: Ready, status: "True",
			observedGeneration: 1}]}}`, outdated},
		{"a.b/v1 Deployment", `{}`, ""}, // a kind of another group

		{"apps/v1 Deployment", `{metadata: {generation: 1}, spec: {replicas: 0}}`, outdated},
		{"apps/v1 Deployment", `{metadata: {generation: 2}, spec: {replicas: 0}, status: {observedGeneration: 2}}`, ""},
		{"apps/v1 Deployment", `{metadata: {generation: 2}, status: {observedGeneration: 2}}`,
			"waiting for its replicas to be updated"},
		{"apps/v1 Deployment", strings.Replace(deployment("updatedReplicas: 3, replicas: 3, availableReplicas: 3"),
			"observedGeneration: 2", "observedGeneration: 1", 1), outdated},
		{"apps/v1 Deployment", deployment("updatedReplicas: 1, replicas: 4, availableReplicas: 3"),
			"waiting for its replicas to be updated"},
		{"apps/v1 Deployment", deployment("updatedReplicas: 3, replicas: 4, availableReplicas: 3"),
			"waiting for its old replicas to terminate"},
		{"apps/v1 Deployment", deployment("updatedReplicas: 3, replicas: 3, availableReplicas: 2"),
			"waiting for its replicas to become available"},
		{"apps/v1 Deployment", deployment("updatedReplicas: 3, replicas: 3, availableReplicas: 3"), ""},
		{"apps/v1 Deployment", deployment("conditions: [{type: Progressing, reason: ProgressDeadlineExceeded}]"),
			"has exceeded its progress deadline"},

		{"apps/v1 StatefulSet", `{metadata: {generation: 1}, spec: {replicas: 0}}`, outdated},
		{"apps/v1 StatefulSet", statefulSet("", "readyReplicas: 2"), "waiting for its replicas to become ready"},
		{"apps/v1 StatefulSet", statefulSet("", "readyReplicas: 4, replicas: 4"),
			"waiting for its old replicas to terminate"},
		{"apps/v1 StatefulSet", statefulSet("", "readyReplicas: 3, replicas: 3, currentRevision: a, updateRevision: b"),
			"waiting for its replicas to be updated"},
		{"apps/v1 StatefulSet", statefulSet("", "readyReplicas: 3, replicas: 3, currentRevision: a, updateRevision: a"), ""},
		{"apps/v1 StatefulSet", statefulSet("updateStrategy: {type: OnDelete}",
			"readyReplicas: 3, replicas: 3, currentRevision: a, updateRevision: b"), ""},
		{"apps/v1 StatefulSet", statefulSet("updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 1}}",
			"readyReplicas: 3, replicas: 3, updatedReplicas: 1, currentRevision: a, updateRevision: b"),
			"waiting for its replicas to be updated"},
		{"apps/v1 StatefulSet", statefulSet("updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 1}}",
			"readyReplicas: 3, replicas: 3, updatedReplicas: 2, currentRevision: a, updateRevision: b"), ""},

		{"apps/v1 DaemonSet", `{metadata: {generation: 1}}`, outdated},
		{"apps/v1 DaemonSet", `{status: {observedGeneration: 0, desiredNumberScheduled: 2, updatedNumberScheduled: 1,
			numberAvailable: 2}}`, "waiting for its Pods on all nodes to be updated"},
		{"apps/v1 DaemonSet", `{spec: {updateStrategy: {type: OnDelete}}, status: {observedGeneration: 0,
			desiredNumberScheduled: 2, updatedNumberScheduled: 1, numberAvailable: 2}}`, ""},
		{"apps/v1 DaemonSet", `{status: {observedGeneration: 0, desiredNumberScheduled: 2, updatedNumberScheduled: 2,
			numberAvailable: 1}}`, "waiting for its Pods on all nodes to become available"},
		{"apps/v1 DaemonSet", `{status: {observedGeneration: 0, desiredNumberScheduled: 2, updatedNumberScheduled: 2,
			numberAvailable: 2}}`, ""},

		{"batch/v1 Job", `{status: {active: 1}}`, "waiting for the Job to complete"},
		{"batch/v1 Job", condition(`type: Complete, status: "True"`), ""},
		{"batch/v1 Job", condition(`type: Failed, status: "True", reason: BackoffLimitExceeded`),
			"has failed (BackoffLimitExceeded)"},

		{"v1 Pod", `{status: {phase: Pending}}`, "waiting for the condition Ready"},
		{"v1 Pod", `{status: {phase: Running, conditions: [{type: Ready, status: "True"}]}}`, ""},
		{"v1 Pod", `{status: {phase: Succeeded}}`, ""},
		{"v1 Pod", `{status: {phase: Failed}}`, "has failed"},

		{"v1 PersistentVolumeClaim", `{status: {phase: Pending}}`, "waiting for the claim to be bound"},
		{"v1 PersistentVolumeClaim", `{status: {phase: Bound}}`, ""},

		{"v1 Service", `{spec: {type: ClusterIP}, status: {loadBalancer: {}}}`, ""},
		{"v1 Service", `{spec: {type: LoadBalancer}, status: {loadBalancer: {}}}`,
			"waiting for the address of the load balancer"},
		{"v1 Service", `{spec: {type: LoadBalancer}, status: {loadBalancer: {ingress: [{ip: 1.2.3.4}]}}}`, ""},

		{"apiextensions.k8s.io/v1 CustomResourceDefinition", `{}`, "waiting for the condition Established"},
		{"apiextensions.k8s.io/v1 CustomResourceDefinition", condition(`type: Established, status: "True"`), ""},
		{"apiextensions.k8s.io/v1 CustomResourceDefinition", condition(`type: NamesAccepted, status: "False", reason: A`),
			"waiting for the condition NamesAccepted (A)"},

		// Malformed values of custom kinds do not cause a panic.
		{"a.b/v1 Thing", `{metadata: {generation: 2}, status: {observedGeneration: x, conditions: [1, {type: [Ready]}]}}`,
			""},
		{"a.b/v1 Thing", `{status: []}`, ""},
	} {
		apiVersion, kind, _ := strings.Cut(c.kind, " ")
		s := step(t, compile(t, ofWebsites(fmt.Sprintf(`
    - {id: child, template: {apiVersion: %s, kind: %s, metadata: {name: a}}}
    - {id: next, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${child.?metadata.?x.orValue('b')}"}}}`,
			apiVersion, kind)), blueprint.Options{}), flowers, map[string]string{"child": c.object, "next": "{}"})
		want := "[]"
		if c.want != "" {
			want = "[child: " + c.want + "]"
		}
		if got := fmt.Sprint(s.Unready); got != want || s.Ready != (c.want == "") {
			t.Errorf("%s %s: got %s, ready %t, want %s", c.kind, c.object, got, s.Ready, want)
		}
		// A claim can be waiting for a Pod that refers to it.
		waits := c.want != "" && kind != "PersistentVolumeClaim"
		if got := fmt.Sprint(s.Waiting); got != map[bool]string{true: "[next: waiting for child]", false: "[]"}[waits] {
			t.Errorf("%s %s: %s", c.kind, c.object, got)
		}
	}
}

func TestReadiness_readyWhenReplacesTheDefault(t *testing.T) {
	s := step(t, compile(t, ofWebsites(`
    - {id: child, readyWhen: ["true"], template: {apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}}`),
		blueprint.Options{}), flowers, map[string]string{"child": "{}"})
	if !s.Ready {
		t.Errorf("unready: %v", s.Unready)
	}
}

// A status that was computed for an earlier generation is not evidence that the child is ready.
func TestReadiness_readyWhenReadsNoOutdatedStatus(t *testing.T) {
	const available = "child.status.availableReplicas == 1"
	for name, c := range map[string]struct {
		condition, observed string
		ready               bool
	}{
		"an outdated status":                  {available, "observedGeneration: 1, ", false},
		"a status of the newest generation":   {available, "observedGeneration: 2, ", true},
		"a status without observedGeneration": {available, "", true},
		"an invalid observedGeneration":       {available, "observedGeneration: x, ", true},
		"an outdated status, read by ?": {
			"child.?status.?availableReplicas.orValue(0) == 1", "observedGeneration: 1, ", false,
		},
		"an outdated status, read with another field": {
			available + " && child.spec.replicas == 1", "observedGeneration: 1, ", false,
		},
		"an outdated status that is not read": {"child.spec.replicas == 1", "observedGeneration: 1, ", true},
		"nothing is read":                     {"true", "observedGeneration: 1, ", true},
	} {
		t.Run(name, func(t *testing.T) {
			child := "{metadata: {name: a, generation: 2}, spec: {replicas: 1}, status: {" + c.observed +
				"availableReplicas: 1}}"
			template := ", template: {apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}}"
			compiled := compile(t, ofWebsites("\n    - {id: child, readyWhen: [\""+c.condition+"\"]"+template),
				blueprint.Options{})
			s := step(t, compiled, flowers, map[string]string{"child": child})
			want := "[]"
			if !c.ready {
				want = "[child: waiting for its controller to observe the newest generation]"
			}
			if got := fmt.Sprint(s.Unready); got != want || s.Ready != c.ready {
				t.Errorf("got %s, ready %t, want %s", got, s.Ready, want)
			}
			unmet, err := compiled.Instance(object(flowers)).UnmetReadyWhen(t.Context(), "child", object(child))
			if err != nil || (unmet == "") != c.ready {
				t.Errorf("why and tree: got %q, %v", unmet, err)
			}
			each := strings.ReplaceAll(c.condition, "child.", "each.")
			collection := compile(t, ofWebsites("\n    - {id: child, forEach: [{x: \"${['a']}\"}], readyWhen: [\""+each+"\"]"+
				strings.ReplaceAll(template, "name: a", "name: \"${x}\"")), blueprint.Options{})
			s = step(t, collection, flowers, map[string]string{blueprint.ItemKey("child", "shop", "a"): child})
			if s.Ready != c.ready {
				t.Errorf("a collection: got %v, ready %t", s.Unready, s.Ready)
			}
		})
	}
}

// Some controllers copy their input to the reason of a condition.
func TestReadiness_hidesReasonsOfSensitiveObjects(t *testing.T) {
	s := step(t, compile(t, ofWebsites(`
    - {id: db, template: {apiVersion: v1, kind: Secret, metadata: {name: db}}}
    - {id: child, template: {apiVersion: a.b/v1, kind: Thing, metadata: {name: a}, spec: {p: "${db.data.password}"}}}`),
		blueprint.Options{}), flowers, map[string]string{
		"db":    observedSecret,
		"child": `{status: {conditions: [{type: Ready, status: "False", reason: hunter2}]}}`,
	})
	if got := fmt.Sprint(s.Unready); got != "[child: waiting for the condition Ready]" {
		t.Errorf("got %s", got)
	}
}

// An expression would wait forever for a key that is never added.
func TestCompile_keysMissingFromTemplates(t *testing.T) {
	const at = "spec.resources[0].readyWhen[0]: "
	const hint = "; if another writer adds the key, test it with has() or read it with ?"
	for condition, want := range map[string]string{
		"crate.spec.labels.app == 'a'": "",
		"crate.spec.labels.appp == 'a'": at + "${crate.spec.labels.appp == 'a'}: crate.spec.labels.appp does not exist: " +
			`the template of crate sets this map without the key "appp"; did you mean app?` + hint,
		"crate.metadata.labels['a/c'] == 'a'": at + "${crate.metadata.labels['a/c'] == 'a'}: " +
			`crate.metadata.labels["a/c"] does not exist: the template of crate sets this map without the key ` +
			`"a/c"; did you mean a/b?` + hint,
		"has(crate.spec.labels.ap)":                        "",
		"crate.spec.?labels.?ap.orValue('') == ''":         "",
		"crate.metadata.annotations['x'] == 'a'":           "", // a map that the template does not set
		"crate.spec.owner.email == 'a'":                    "", // a field that the schema declares
		"crate.spec.free.thing == 'a'":                     "", // an object of which no fields are known
		"crate.spec.labels.exists(k, k == 'ap')":           "",
		"crate.spec.parts[0].name == 'a'":                  "",
		"'x' in crate.spec.labels && crate.spec.size == 1": "",
	} {
		text := ofWebsites(`
    - id: crate
      readyWhen: ["` + condition + `"]
      template: {apiVersion: shop.example.com/v1, kind: Crate, metadata: {name: a, labels: {a/b: c}},
        spec: {size: 1, labels: {app: "${self.spec.name}"}, owner: {}, free: {a: b}, parts: [{name: a}]}}
    - {id: db, template: {apiVersion: v1, kind: Secret, metadata: {name: a}, data: {}, stringData: {a: b}}}
    - {id: map, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${db.data.a}"}}}`)
		text = strings.Replace(text, "\n    - {id: map", "\n    - {id: config", 1)
		text = strings.Replace(text, "name: \"${db.data.a}\"", "name: a}, data: {a: \"${db.data.a}\"", 1)
		got := strings.Join(problemsOf(t, text, describing(t, definitionOf(t, crates))), "\n")
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", condition, got, want)
		}
	}
}
