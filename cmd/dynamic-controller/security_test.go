package main

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// making is a Blueprint of the kind whose instances become one object. Its spec has strings a and b.
func making(kind, template string, fields ...string) string {
	return `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: ` + strings.ToLower(kind) + `s.GROUP}
spec:
` + strings.Join(fields, "\n") + `
  type:
    group: GROUP
    version: v1
    kind: ` + kind + `
    schema:
      properties:
        spec: {type: object, properties: {a: {type: string}, b: {type: string}}}
  resources:
    - id: child
      template: ` + template
}

// foreignText is the content of objects that neither the authors, nor the tenants, nor their ServiceAccounts can read.
// It is a valid name.
const foreignText = "hunter2-is-secret"

// foreign are such objects. OTHER is a namespace in which the tenants have no permissions.
var foreign = []string{
	"{apiVersion: v1, kind: Secret, metadata: {name: vault}, stringData: {text: " + foreignText + "}}",
	"{apiVersion: v1, kind: ConfigMap, metadata: {name: notes, namespace: OTHER}, data: {text: " + foreignText + "}}",
	"{apiVersion: v1, kind: Service, metadata: {name: theirs, annotations: {text: " + foreignText + "}}, " +
		"spec: {ports: [{port: 80}]}}",
}

// attack is an attempt to use more permissions than those of the ServiceAccount that a Blueprint runs as. The author
// creates the Blueprint, and the tenant creates an instance that has the name of its kind in lower case.
type attack struct {
	kind, template string
	fields         []string            // of the Blueprint's spec
	edit           []change            // of the whole Blueprint
	may            []rbacv1.PolicyRule // the permissions of the ServiceAccount in the namespace of the instance
	refused        string              // in the API server's response to the Blueprint, if not empty
	rejected       []string            // words of the Blueprint's Accepted condition; if nil, the Blueprint is served
	spec           string              // of the instance
	forge          func(*scene)        // continues the attack after the instance has been created
	want           []string            // words of the instance's Ready condition, which is False; if nil, it is True
	absent         []string            // objects that must not exist, as APIVERSION KIND NAME
	check          func(*scene)
}

// copied is a second resource, which shows an expression on the first one.
func copied(expression string) string {
	return `
    - id: copy
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}-copy"},
        data: {text: "${` + expression + `}"}}`
}

const (
	adopt      = "\n      adopt: true"
	namedChild = `metadata: {name: "${self.metadata.name}"}`
	configMap  = "{apiVersion: v1, kind: ConfigMap, "
	anywhere   = configMap + `metadata: {name: "${self.metadata.name}", namespace: "${self.spec.a}"}}`
)

// attacks are the attempts by role and channel. NAMESPACE is the namespace of the instances.
func attacks() map[string]attack {
	configMaps := []rbacv1.PolicyRule{rule(writeChildren, "", "configmaps")}
	copies := []rbacv1.PolicyRule{rule(writeChildren, "", "configmaps", "blind-copy")}
	return map[string]attack{
		"author template: a Secret is read": {
			kind: "Reader", may: configMaps,
			template: `{apiVersion: v1, kind: Secret, metadata: {name: vault}}` + adopt + copied("child.data.text"),
			want:     []string{"Forbidden", "as ServiceAccount NAMESPACE/reader: ", `cannot get resource "secrets"`},
			absent:   []string{"v1 ConfigMap reader-copy"},
		},
		"author template: an object of another namespace is read": {
			kind: "Viewer", may: configMaps,
			template: configMap + `metadata: {name: notes, namespace: OTHER}}` + adopt + copied("child.data.text"),
			want: []string{"Forbidden", "as ServiceAccount NAMESPACE/viewer: ",
				`cannot get resource "configmaps" in API group "" in the namespace "OTHER"`},
			absent: []string{"v1 ConfigMap viewer-copy"},
		},
		"author template: permissions are granted": {
			kind: "Granter", template: `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: granted},
        rules: [{apiGroups: [""], resources: [secrets], verbs: [get]}]}
    - id: binding
      template: {apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: granted},
        roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin},
        subjects: [{kind: ServiceAccount, name: granter, namespace: NAMESPACE}]}
    - id: everywhere
      template: {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding,
        metadata: {name: NAMESPACE-granted},
        roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin},
        subjects: [{kind: ServiceAccount, name: granter, namespace: NAMESPACE}]}`,
			may: []rbacv1.PolicyRule{rule(writeChildren, "rbac.authorization.k8s.io", "roles,rolebindings")},
			want: []string{"Forbidden", "as ServiceAccount NAMESPACE/granter: ",
				`user "system:serviceaccount:NAMESPACE:granter" (groups=["system:serviceaccounts"`,
				`roles.rbac.authorization.k8s.io "granted" is forbidden`,
				`rolebindings.rbac.authorization.k8s.io "granted" is forbidden`,
				"is attempting to grant RBAC permissions not currently held",
				`cannot get resource "clusterrolebindings"`},
			absent: []string{"rbac.authorization.k8s.io/v1 Role granted", "rbac.authorization.k8s.io/v1 RoleBinding granted",
				"rbac.authorization.k8s.io/v1 ClusterRoleBinding NAMESPACE-granted"},
		},
		"author status: a cached child is copied": {
			kind:     "Blind",
			template: configMap + `metadata: {name: blind-leak}}` + copied("child.?data.?text.orValue('nothing')"),
			may:      copies, forge: (*scene).revokeRead,
			want:  []string{"Forbidden", "as ServiceAccount NAMESPACE/blind: ", `configmaps "blind-leak" is forbidden`},
			check: func(s *scene) { s.wait("v1", "ConfigMap", "blind-copy", has("nothing", "data", "text")) },
		},
		"author error message: an expression fails with the content of a cached child": {
			kind: "Quoter", template: configMap + `metadata: {name: quoter-leak}}
      readyWhen: ["int(child.?data.?text.orValue('1')) > 0"]`,
			may: copies, forge: (*scene).revokeRead,
			want: []string{"Forbidden", "as ServiceAccount NAMESPACE/quoter: ", `configmaps "quoter-leak" is forbidden`},
		},
		"author inventory: a template sets it": {
			kind: "Lister", template: configMap + `metadata: {name: a, annotations:
        {platform.example.com/inventory: "Secret=v1/secrets"}}}`,
			rejected: []string{"Invalid", "spec.resources[0].template.metadata.annotations: keys under platform.example.com/ " +
				"must not be set in a template"},
		},
		"author inventory: a template marks an object as a child": {
			kind: "Labeler", template: configMap + `metadata: {name: a, labels: {platform.example.com/parent: other}}}`,
			rejected: []string{"Invalid", "spec.resources[0].template.metadata.labels: keys under platform.example.com/ " +
				"must not be set in a template"},
		},
		"author inventory: a template sets a finalizer": {
			kind: "Finalizer", template: configMap + `metadata: {name: a, finalizers: [example.com/forever]}}`,
			rejected: []string{"Invalid", "spec.resources[0].template.metadata.finalizers: must not be set in a template"},
		},
		"author claim: the type of another Blueprint": {
			kind: "Thief", template: configMap + namedChild + "}",
			edit: []change{{"kind: Thief", "kind: First"}, {"group: GROUP", "group: NAMESPACE.example.com"}},
			rejected: []string{"TypeClaimed",
				"firsts.NAMESPACE.example.com is already claimed by Blueprint firsts.NAMESPACE.example.com"},
		},
		"author namespace: a template names another namespace": {
			kind: "Wanderer", template: configMap + `metadata: {name: wanderer, namespace: OTHER}}`, may: configMaps,
			want:   []string{"Forbidden", "as ServiceAccount NAMESPACE/wanderer: ", `in the namespace "OTHER"`},
			absent: []string{"v1 ConfigMap OTHER/wanderer"},
		},
		"author namespace: an expression computes it": {
			kind: "Computer", template: anywhere,
			rejected: []string{"Invalid", "spec.resources[0].template.metadata.namespace: ${self.spec.a}: ",
				"spec.allowedNamespaces"},
		},
		"author namespace: a ServiceAccount of another namespace": {
			kind: "Borrower", template: configMap + namedChild + "}",
			edit:    []change{{"serviceAccountName: borrower", "serviceAccountName: OTHER:borrower"}},
			refused: "spec.serviceAccountName: Invalid value",
		},
		"tenant template: a field contains an expression": {
			kind: "Echo", template: configMap + namedChild + `, data: {text: "${self.spec.a}"}}`, may: configMaps,
			spec: `{a: "${self.metadata.uid} ${string(1)}"}`,
			check: func(s *scene) {
				s.wait("v1", "ConfigMap", "echo", has("${self.metadata.uid} ${string(1)}", "data", "text"))
			},
		},
		"tenant status: a deletion is blocked by a child that the ServiceAccount cannot read": {
			kind: "Hider", template: `{apiVersion: v1, kind: Secret, ` + namedChild + `}`,
			forge: (*scene).deleteWithUnreadableChild,
			want:  []string{"Deleting", "waiting for a child of kind Secret to be deleted"},
			check: func(s *scene) {
				s.apply("{apiVersion: v1, kind: Secret, metadata: {name: " + foreignText + ", finalizers: []}}")
				s.waitGone("GROUP/v1", s.kind, s.name)
			},
		},
		"tenant error message: the API server rejects a value of a Secret": {
			kind: "Keeper", template: `{apiVersion: v1, kind: Secret, ` + namedChild + `}
      readyWhen: ["has(child.data) && has(child.data.password)"]
    - id: service
      template: {apiVersion: v1, kind: Service, metadata: {name: keeper-service},
        spec: {type: "${string(base64.decode(child.data.password))}", ports: [{port: 80}]}}`,
			may:    []rbacv1.PolicyRule{rule(writeChildren, "", "secrets,services")},
			forge:  func(s *scene) { s.fill(s.name, base64.StdEncoding.EncodeToString([]byte(foreignText))) },
			want:   []string{"Rejected", "422 Invalid", "its message is not shown", "spec.type: FieldValueNotSupported"},
			absent: []string{"v1 Service keeper-service"},
		},
		"tenant inventory: an object of others has the marks of a child": {
			kind: "Marker", template: anywhere, fields: []string{"  allowedNamespaces: [test-*]"}, may: configMaps,
			spec: "{a: NAMESPACE}", forge: (*scene).forgeInventory,
			want: []string{"Forbidden", "as ServiceAccount NAMESPACE/marker: ",
				`cannot delete resource "configmaps" in API group "" in the namespace "OTHER"`},
			check: func(s *scene) {
				for _, kind := range []string{"ConfigMap", "Secret"} {
					if obj, err := s.get("v1", kind, s.other+"/marked"); err != nil || obj.GetDeletionTimestamp() != nil {
						s.Errorf("the %s of others is %v, %v", kind, obj, err)
					}
				}
			},
		},
		"tenant inventory: a label of the platform": {
			kind: "Label", template: configMap + `metadata: {name: label, labels: "${{self.spec.a: self.spec.b}}"}}`,
			may: configMaps, spec: "{a: platform.example.com/parent, b: other}",
			want:   []string{"Invalid", "spec.resources[0].template.metadata.labels: keys under platform.example.com/"},
			absent: []string{"v1 ConfigMap label"},
		},
		"tenant claim: an instance gets the name of an object of others": {
			kind: "Taker", template: `{apiVersion: v1, kind: Service, metadata: {name: "${self.spec.a}"},
        spec: {ports: [{port: 81}]}}`,
			may: []rbacv1.PolicyRule{rule(writeChildren, "", "services")}, spec: "{a: theirs}",
			want: []string{"Conflict", "theirs", "it has no controller, and adoption is not enabled"},
			check: func(s *scene) {
				s.wait("v1", "Service", "theirs", func(obj *unstructured.Unstructured) error {
					ports, _, _ := unstructured.NestedSlice(obj.Object, "spec", "ports")
					if len(ports) != 1 || ports[0].(map[string]any)["port"] != int64(80) || len(obj.GetOwnerReferences()) > 0 {
						return fmt.Errorf("the Service of others has changed: %v", obj)
					}
					return nil
				})
			},
		},
		"tenant claim: a forged child is created before the platform creates it": {
			kind: "Forger", template: configMap + `metadata: {name: "${self.spec.a}"}, data: {text: "${self.spec.a}"}}`,
			may: configMaps, spec: "{a: genuine}", forge: (*scene).forgeChild,
			check: func(s *scene) {
				s.wait("v1", "ConfigMap", "forged", has("forged", "data", "text"))
				s.waitGone("v1", "ConfigMap", "genuine")
			},
		},
		"tenant namespace: one that the Blueprint does not list": {
			kind: "Stayer", template: anywhere, fields: []string{"  allowedNamespaces: [other-*]"}, may: configMaps,
			spec:   "{a: OTHER}",
			want:   []string{"Invalid", "spec.resources[0].template.metadata.namespace: ", "OTHER", "spec.allowedNamespaces"},
			absent: []string{"v1 ConfigMap OTHER/stayer"},
		},
		"tenant namespace: one in which the ServiceAccount has no permissions": {
			kind: "Mover", template: anywhere, fields: []string{"  allowedNamespaces: [test-*]"}, may: configMaps,
			spec: "{a: OTHER}",
			want: []string{"Forbidden", "as ServiceAccount NAMESPACE/mover: ",
				`in API group "" in the namespace "OTHER"`},
			absent: []string{"v1 ConfigMap OTHER/mover"},
		},
	}
}

// The platform has all permissions. Authors and tenants can use only those of the ServiceAccount, whatever the channel.
func TestSecurity(t *testing.T) {
	a := newAPI(t)
	s := &scene{api: a, processes: &[]*process{}, users: newImpersonations()}
	s.other = a.addNamespace(a.namespace + "-other")
	kubeconfig, _ := a.proxied(s.users.wrap)
	s.start = func() {
		*s.processes = append(*s.processes, startServing(t, kubeconfig, "--allow-platform-identity=false"))
	}
	s.start()
	s.author, s.tenant = a.author(), a.tenant()
	for _, text := range foreign {
		a.apply(s.expand(text))
	}
	s.author.apply(making("First", configMap+namedChild+"}", "  serviceAccountName: first"))
	a.waitBlueprint("firsts", is("Accepted", "True"), is("Serving", "True"))

	t.Run("neither the author nor the tenant has other permissions", s.checkRoles)
	for name, attack := range attacks() {
		t.Run(name, func(t *testing.T) { s.with(t, attack).run() })
	}
	for _, resource := range []string{
		"configmaps", "secrets", "services", "roles", "rolebindings", "clusterrolebindings",
	} {
		for _, verb := range []string{"get", "create", "update", "patch", "delete"} {
			if s.users.includes(verb+" "+resource, "") {
				t.Errorf("the platform sent %s %s with its own permissions", verb, resource)
			}
		}
	}
}
