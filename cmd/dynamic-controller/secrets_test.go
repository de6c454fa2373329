package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// secretBlueprint returns a Blueprint with a Secret that another client fills, and with an object that depends on it.
func secretBlueprint(kind, readyWhen, template string) string {
	return `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: ` + strings.ToLower(kind) + `s.GROUP}
spec:
` + runsAs + `
  type:
    group: GROUP
    version: v1
    kind: ` + kind + `
    schema:
      properties:
        spec: {type: object, properties: {words: {type: object, additionalProperties: {type: string}}}}
  resources:
    - id: db
      readyWhen: ["` + readyWhen + `"]
      template: {apiVersion: v1, kind: Secret, metadata: {name: "${self.metadata.name}"}}
    - id: copy
      template: ` + template
}

func TestSecrets_DataIsNotInStatusesAndLogs(t *testing.T) {
	const value = "hunter2 is secret!"
	encoded := base64.StdEncoding.EncodeToString([]byte(value))
	const read = "string(base64.decode(db.data.password))"
	a := newAPI(t)
	p, _ := a.platform(everything())
	a.serviceAccount(a.namespace, "web", rule(writeChildren, "", "configmaps,secrets,services"))
	const kinds = "services ports labels keys refusals numbers words readinesss warnings"
	a.consent(a.namespace, "web", strings.ReplaceAll(kinds, " ", "."+a.group+",")+"."+a.group)
	tenant := a.tenant()
	for _, policy := range []struct{ name, action string }{{"deny", "Deny"}, {"warn", "Warn"}} {
		for _, text := range []string{`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: NAME}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE, UPDATE]}]
  matchConditions: [{name: it, expression: "has(object.data) && 'ACTION' in object.data"}]
  validations: [{expression: "false", messageExpression: "'the policy says ' + object.data['ACTION']"}]
`, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: NAME}
spec:
  policyName: NAME
  validationActions: [ACTION]
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}}
`} {
			obj := a.read(strings.NewReplacer("NAMESPACE", a.namespace, "NAME", a.namespace+"-"+policy.name, "ACTION",
				policy.action).Replace(text))
			gvr := obj.GroupVersionKind().GroupVersion().WithResource("validatingadmissionpolicies")
			if obj.GetKind() == "ValidatingAdmissionPolicyBinding" {
				gvr.Resource = "validatingadmissionpolicybindings"
			}
			if _, err := a.dynamic.Resource(gvr).Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = a.dynamic.Resource(gvr).Delete(context.WithoutCancel(t.Context()), obj.GetName(), metav1.DeleteOptions{})
			})
		}
	}
	// The API server enforces a new policy only after some time.
	denied := a.read("{apiVersion: v1, kind: ConfigMap, metadata: {name: denied}, data: {Deny: x}}")
	eventually(t, func() error {
		_, err := a.dynamic.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(a.namespace).
			Create(t.Context(), denied, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("the policy is not enforced")
		}
		return nil
	})
	const filled = "has(db.data) && has(db.data.password)"
	service := func(spec string) string {
		return `{apiVersion: v1, kind: Service, metadata: {name: "${self.metadata.name}"}, spec: ` + spec + `}`
	}
	config := func(rest string) string {
		return `{apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}"}, ` + rest + `}`
	}
	for name, test := range map[string]struct {
		kind, readyWhen, template string
		want                      []string
	}{
		"unsupported value": {
			"Service", filled, service(`{type: "${` + read + `}", ports: [{port: 80}]}`), []string{"Rejected", "422 Invalid",
				"spec.type: FieldValueNotSupported"},
		},
		"value of another type": {
			"Port", filled, service(`{ports: [{port: "${dyn(` + read + `)}"}]}`), []string{"its message is not shown"},
		},
		"label": {
			"Label", filled, `{apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}", labels: {a: "${` +
				read + `}"}}}`, []string{"Rejected", "metadata.labels: FieldValueInvalid"},
		},
		"key": {
			"Key", filled, config(`data: "${{` + read + `: 'x'}}"`), []string{"Rejected", "data: FieldValueInvalid"},
		},
		"policy that denies the request": {
			"Refusal", filled, config(`data: {Deny: "${` + read + `}"}`), []string{"its message is not shown"},
		},
		"failing expression": {
			"Number", filled, config(`data: {a: "${string(int(` + read + `))}"}`), []string{"Invalid",
				"the reason is hidden, because the expression reads a Secret"},
		},
		"expression with a missing key": {
			"Word", filled, config(`data: {a: "${self.spec.words[` + read + `]}"}`), []string{"Waiting",
				"waiting for a key or an index of a Secret"},
		},
		"readiness condition": {
			"Readiness", filled + " && int(" + read + ") > 0", config("data: {}"), []string{"Waiting",
				"the reason is hidden, because the expression reads a Secret"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *a
			sub.T = t
			sub.apply(secretBlueprint(test.kind, test.readyWhen, test.template))
			name := strings.ToLower(test.kind)
			user := *tenant
			user.T = t
			user.apply("{apiVersion: GROUP/v1, kind: " + test.kind + ", metadata: {name: " + name + "}, spec: {words: {a: b}}}")
			sub.fill(name, encoded)
			obj := user.wait("GROUP/v1", test.kind, name, is("Ready", "False", test.want...))
			if text, err := json.Marshal(obj); err != nil || strings.Contains(string(text), "hunter2") ||
				strings.Contains(string(text), encoded) {
				t.Errorf("the instance shows the value: %s, %v", text, err)
			}
		})
	}
	// This object causes a warning.
	a.apply(secretBlueprint("Warning", filled, config(`data: {Warn: "${`+read+`}"}`)))
	tenant.apply("{apiVersion: GROUP/v1, kind: Warning, metadata: {name: warning}, spec: {words: {}}}")
	a.fill("warning", encoded)
	tenant.wait("GROUP/v1", "Warning", "warning", is("Ready", "True"))

	a.apply(secretBlueprint("Name", filled, `{apiVersion: v1, kind: ConfigMap, metadata: {name: "${`+read+`}"}}`))
	a.waitBlueprint("names", is("Accepted", "False", "spec.resources[1].template.metadata.name",
		"must not be derived from a Secret's data"))

	p.waitLog(line{Msg: "Reconcile failed, will retry"})
	for text := range strings.Lines(p.output()) {
		if strings.Contains(text, "hunter2") || strings.Contains(text, encoded) {
			t.Errorf("the log shows the value: %s", text)
		}
	}
}

// fill adds a password to a Secret that the platform created.
func (a *api) fill(name, encoded string) {
	a.Helper()
	a.wait("v1", "Secret", name, all())
	secret, err := a.get("v1", "Secret", name)
	if err == nil {
		patch := fmt.Sprintf(`{"data":{"password":%q}}`, encoded)
		_, err = a.client(secret).Patch(a.Context(), name, types.MergePatchType, []byte(patch),
			metav1.PatchOptions{FieldManager: "test"})
	}
	if err != nil {
		a.Fatal(err)
	}
}
