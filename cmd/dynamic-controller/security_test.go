package main

import (
	"encoding/base64"
	"maps"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// making returns a Blueprint of the kind with one template. Its spec has the strings a and b.
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

// foreignText is the content of objects that neither authors, nor tenants, nor their ServiceAccounts can read. It is
// also a valid name.
const foreignText = "hunter2-is-secret"

// foreign contains objects with foreignText. OTHER is a namespace in which tenants have no permissions.
var foreign = []string{
	"{apiVersion: v1, kind: Secret, metadata: {name: vault}, stringData: {text: " + foreignText + "}}",
	"{apiVersion: v1, kind: ConfigMap, metadata: {name: notes, namespace: OTHER}, data: {text: " + foreignText + "}}",
	"{apiVersion: v1, kind: Service, metadata: {name: theirs, annotations: {text: " + foreignText + "}}, " +
		"spec: {ports: [{port: 80}]}}",
}

// attack is an attempt to gain more permissions than the Blueprint's ServiceAccount has. The author creates the
// Blueprint. The tenant creates an instance whose name is its kind in lower case.
type attack struct {
	kind, template string
	fields         []string            // additional fields of the Blueprint's spec
	edit           []change            // changes to the Blueprint
	may            []rbacv1.PolicyRule // permissions of the ServiceAccount in the instance's namespace
	refused        string              // part of the API server's error; if empty, the Blueprint is stored
	rejected       []string            // parts of the Blueprint's Accepted condition; if nil, the Blueprint is served
	spec           string              // spec of the instance
	then           func(*scene)        // continues the attack after the instance has been created
	want           []string            // parts of the Ready condition, which must be False; if nil, it must be True
	absent         []string            // objects that must not exist, in the form APIVERSION KIND NAME
	check          func(*scene)
}

// copied returns a second resource that contains the result of an expression on the first one.
func copied(expression string) string {
	return `
    - id: copy
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}-copy"},
        data: {text: "${` + expression + `}"}}`
}

// existing returns a reference to existing objects, and a third resource with the result of an expression on them.
func existing(kind, metadata, expression string) string {
	return `
    - id: existing
      externalRef: {apiVersion: v1, kind: ` + kind + `, metadata: {` + metadata + `}}` + copied(expression)
}

// mayReadElsewhere allows the ServiceAccount to read ConfigMaps in another namespace.
func (s *scene) mayReadElsewhere() {
	s.Helper()
	s.grant(s.other, s.namespace, s.name, rule("get,list", "", "configmaps"))
}

const (
	adopt      = "\n      adopt: true"
	namedChild = `metadata: {name: "${self.metadata.name}"}`
	configMap  = "{apiVersion: v1, kind: ConfigMap, "
	anywhere   = configMap + `metadata: {name: "${self.metadata.name}", namespace: "${self.spec.a}"}}`
)

// attacks returns the attacks by role and channel. NAMESPACE is the namespace of the instances.
func attacks() map[string]attack {
	configMaps := []rbacv1.PolicyRule{rule(writeChildren, "", "configmaps")}
	copies := []rbacv1.PolicyRule{rule(writeChildren, "", "configmaps", "blind-copy")}
	return map[string]attack{
		"author template: a Secret is read": {
			kind: "Reader", may: configMaps,
			template: `{apiVersion: v1, kind: Secret, metadata: {name: vault}}` + adopt + copied("child.data.text"),
			want:     []string{"Forbidden", "as ServiceAccount NAMESPACE/reader: ", `cannot patch resource "secrets"`},
			absent:   []string{"v1 ConfigMap reader-copy"},
		},
		"author template: an object in another namespace is read": {
			kind: "Viewer", may: configMaps,
			template: configMap + `metadata: {name: notes, namespace: OTHER}}` + adopt + copied("child.data.text"),
			want: []string{"Forbidden", "as ServiceAccount NAMESPACE/viewer: ",
				`cannot patch resource "configmaps" in API group "" in the namespace "OTHER"`},
			absent: []string{"v1 ConfigMap viewer-copy"},
		},
		"author template: permissions are granted": {
			kind: "Granter", template: `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: granted},
        rules: [{apiGroups: [""], resources: [secrets], verbs: [get]}]}
    - id: binding
      template: {apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: granted},
        roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin},
        subjects: [{kind: ServiceAccount, name: granter, namespace: NAMESPACE}]}
    - id: page
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: granter-page}}
    - id: everywhere
      template: {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding,
        metadata: {name: NAMESPACE-granted},
        roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin},
        subjects: [{kind: ServiceAccount, name: granter, namespace: NAMESPACE}]}`,
			may: append(slices.Clone(configMaps), rule(writeChildren, "rbac.authorization.k8s.io", "roles,rolebindings")),
			want: []string{"Forbidden", "as ServiceAccount NAMESPACE/granter: ",
				`user "system:serviceaccount:NAMESPACE:granter" (groups=["system:serviceaccounts"`,
				`roles.rbac.authorization.k8s.io "granted" is forbidden`,
				`rolebindings.rbac.authorization.k8s.io "granted" is forbidden`,
				"is attempting to grant RBAC permissions not currently held",
				`cannot patch resource "clusterrolebindings"`},
			absent: []string{"rbac.authorization.k8s.io/v1 Role granted", "rbac.authorization.k8s.io/v1 RoleBinding granted",
				"rbac.authorization.k8s.io/v1 ClusterRoleBinding NAMESPACE-granted"},
		},
		"author status: a cached child is copied": {
			kind:     "Blind",
			template: configMap + `metadata: {name: blind-leak}}` + copied("child.?data.?text.orValue('nothing')"),
			may:      copies, then: (*scene).revokeRead,
			want:  []string{"Forbidden", "as ServiceAccount NAMESPACE/blind: ", `configmaps "blind-leak" is forbidden`},
			check: func(s *scene) { s.wait("v1", "ConfigMap", "blind-copy", has("nothing", "data", "text")) },
		},
		"author error message: an expression fails with the content of a cached child": {
			kind: "Quoter", template: configMap + `metadata: {name: quoter-leak}}
      readyWhen: ["int(child.?data.?text.orValue('1')) > 0"]`,
			may: copies, then: (*scene).revokeRead,
			want: []string{"Forbidden", "as ServiceAccount NAMESPACE/quoter: ", `configmaps "quoter-leak" is forbidden`},
		},
		"author status: a cached child is shown in fields and conditions": {
			kind: "Shower", template: configMap + `metadata: {name: shower-leak}}`, then: (*scene).revokeRead,
			edit: []change{{"    schema:\n", `    status: {text: "${child.?data.?text}", all: "${child.?data}",
      number: "${int(child.?data.?text.orValue('1'))}", uid: "${child.metadata.uid}"}
    conditions: [{type: Empty, status: "!has(child.data)", message: "${string(child.?data.?text.orValue(''))}"}]
    schema:
`}},
			want: []string{"Forbidden", "as ServiceAccount NAMESPACE/shower: ", `configmaps "shower-leak" is forbidden`},
			check: func(s *scene) { // the status is that of the last reconcile that read the child
				child, err := s.get("v1", "ConfigMap", "shower-leak")
				if err != nil {
					s.Fatal(err)
				}
				s.tenant.wait("GROUP/v1", s.kind, s.name, all(has(nil, "status", "text"), has(nil, "status", "all"),
					has(string(child.GetUID()), "status", "uid"), is("Empty", "True", "ConditionMet")))
			},
		},
		"author status: data from a Secret is shown": {
			kind: "Teller", template: `{apiVersion: v1, kind: Secret, ` + namedChild + `}` + copied("child.data.text"),
			edit: []change{{"    schema:\n", `    status: {a: "${child.data.text}", b: "${copy.data.text}"}
    schema:
`}},
			rejected: []string{"Invalid", "spec.type.status.a: ${child.data.text}: must not read a Secret's data",
				"spec.type.status.b: ${copy.data.text}: must not read a Secret's data"},
		},
		"author template: the objects of a collection are read": {
			kind: "Gatherer", may: configMaps,
			template: `{apiVersion: v1, kind: Secret, metadata: {name: "${name}"}}
      forEach: [{name: "${['vault', 'other']}"}]` + adopt + copied("child.map(c, c.data.text).join(' ')"),
			want:   []string{"Forbidden", "as ServiceAccount NAMESPACE/gatherer: ", `cannot patch resource "secrets"`},
			absent: []string{"v1 ConfigMap gatherer-copy"},
		},
		"author error message: the items of a collection are data from a Secret": {
			kind: "Lettered", template: `{apiVersion: v1, kind: Secret, metadata: {name: vault}}` + adopt + `
    - id: letters
      forEach: [{letter: "${child.data.map(key, child.data[key])}"}]
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${letter}"}}`,
			rejected: []string{"Invalid", "spec.resources[1].template.metadata.name: ${letter}: must not be derived from a " +
				"Secret's data"},
		},
		"tenant template: the items of a list are not evaluated as expressions": {
			kind: "Itemizer", may: configMaps,
			template: configMap + `metadata: {name: "${self.metadata.name}-${item.size()}"}, data: {text: "${item}"}}
      forEach: [{item: "${[self.spec.a, self.spec.b]}"}]`,
			spec: `{a: "$${self.metadata.uid}", b: "${child}"}`,
			check: func(s *scene) {
				s.wait("v1", "ConfigMap", "itemizer-8", has("${child}", "data", "text"))
			},
		},
		"tenant namespace: an item is another tenant's namespace": {
			kind: "Scatterer", may: configMaps,
			template: configMap + `metadata: {name: "${self.metadata.name}", namespace: "${item}"}}
      forEach: [{item: "${[self.spec.a]}"}]`,
			fields: []string{"  allowedNamespaces: [NAMESPACE]"}, spec: "{a: OTHER}",
			want:   []string{"Invalid", "with item[0]: namespace \"OTHER\" does not match spec.allowedNamespaces"},
			absent: []string{"v1 ConfigMap OTHER/scatterer"},
		},
		"author inventory: a template sets the inventory": {
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
		"author namespace: a template sets another namespace": {
			kind: "Wanderer", template: configMap + `metadata: {name: wanderer, namespace: OTHER}}`, may: configMaps,
			then: func(s *scene) { s.grant(s.other, s.namespace, s.name, rule("get", "", "configmaps", "wanderer")) },
			want: []string{"Forbidden", "as ServiceAccount NAMESPACE/wanderer: ",
				`cannot patch resource "configmaps" in API group "" in the namespace "OTHER"`},
			absent: []string{"v1 ConfigMap OTHER/wanderer"},
		},
		"author namespace: an expression computes the namespace": {
			kind: "Computer", template: anywhere,
			rejected: []string{"Invalid", "spec.resources[0].template.metadata.namespace: ${self.spec.a}: ",
				"spec.allowedNamespaces"},
		},
		"author namespace: a ServiceAccount in another namespace": {
			kind: "Borrower", template: configMap + namedChild + "}",
			edit:    []change{{"serviceAccountName: borrower", "serviceAccountName: OTHER:borrower"}},
			refused: "spec.serviceAccountName: Invalid value",
		},
		"author reference: a Secret is read": {
			kind: "Peeker", may: configMaps,
			template: configMap + namedChild + "}" + existing("Secret", "name: vault", "existing.data.text"),
			want: []string{"Forbidden", "existing: as ServiceAccount NAMESPACE/peeker: ",
				`secrets "vault" is forbidden`, `cannot get resource "secrets"`},
			absent: []string{"v1 ConfigMap peeker-copy"},
		},
		"author reference: a Secret that does not exist has the same response": {
			kind: "Prober", may: configMaps,
			template: configMap + namedChild + "}" + existing("Secret", "name: nothing", "existing.data.text"),
			want: []string{"Forbidden", "existing: as ServiceAccount NAMESPACE/prober: ",
				`secrets "nothing" is forbidden`, `cannot get resource "secrets"`},
			absent: []string{"v1 ConfigMap prober-copy"},
		},
		"author reference: Secrets are listed": {
			kind: "Collector", may: configMaps,
			template: configMap + namedChild + "}" + existing("Secret", "selector: {}", "string(size(existing))"),
			want: []string{"Forbidden", "existing: as ServiceAccount NAMESPACE/collector: ",
				`cannot list resource "secrets"`},
			absent: []string{"v1 ConfigMap collector-copy"},
		},
		"author reference: an object in another namespace is read": {
			kind: "Neighbor", may: configMaps,
			template: configMap + namedChild + "}" +
				existing("ConfigMap", "name: notes, namespace: OTHER", "existing.data.text"),
			want: []string{"Forbidden", "existing: as ServiceAccount NAMESPACE/neighbor: ",
				`cannot get resource "configmaps" in API group "" in the namespace "OTHER"`},
			absent: []string{"v1 ConfigMap neighbor-copy"},
		},
		"author reference: an expression computes the namespace": {
			kind: "Roamer", template: configMap + namedChild + "}" +
				existing("ConfigMap", `name: notes, namespace: "${self.spec.a}"`, "existing.data.text"),
			rejected: []string{"Invalid", "spec.resources[1].externalRef.metadata.namespace: ${self.spec.a}: ",
				"spec.allowedNamespaces"},
		},
		"tenant reference: a namespace that the Blueprint does not list": {
			kind: "Steerer", fields: []string{"  allowedNamespaces: [other-*]"}, may: configMaps, spec: "{a: OTHER}",
			template: configMap + namedChild + "}" +
				existing("ConfigMap", `name: notes, namespace: "${self.spec.a}"`, "existing.data.text"),
			then: (*scene).mayReadElsewhere,
			want: []string{"Invalid", "spec.resources[1].externalRef.metadata.namespace: ", "OTHER",
				"does not match spec.allowedNamespaces"},
			absent: []string{"v1 ConfigMap steerer-copy"},
		},
		"tenant reference: a name leads to another namespace": {
			kind: "Climber", may: configMaps, spec: "{a: ../../OTHER/configmaps/notes}",
			template: configMap + namedChild + "}" +
				existing("ConfigMap", `name: "${self.spec.a}"`, "existing.data.text"),
			then:   (*scene).mayReadElsewhere,
			want:   []string{"Invalid", "spec.resources[1].externalRef.metadata.name: ", "is not a valid object name"},
			absent: []string{"v1 ConfigMap climber-copy"},
		},
		"tenant reference: a label contains a selector": {
			kind: "Injector", may: []rbacv1.PolicyRule{rule(writeChildren+",list", "", "configmaps")},
			spec: `{a: "a,team!=a"}`,
			template: configMap + namedChild + "}" +
				existing("ConfigMap", `selector: {matchLabels: {team: "${self.spec.a}"}}`, "string(size(existing))"),
			want: []string{"Invalid", "spec.resources[1].externalRef.metadata.selector.matchLabels.team: ",
				"Invalid value"},
			absent: []string{"v1 ConfigMap injector-copy"},
		},
		"tenant reference: an error message contains data from a Secret": {
			kind: "Decoder", may: []rbacv1.PolicyRule{rule(writeChildren, "", "configmaps,secrets")}, spec: "{a: vault}",
			template: configMap + namedChild + "}" + existing("Secret", `name: "${self.spec.a}"`,
				"string(int(string(base64.decode(existing.data.text))))"),
			want:   []string{"Invalid", "the reason is hidden, because the expression reads a Secret"},
			absent: []string{"v1 ConfigMap decoder-copy"},
		},
		"tenant reference: a child that depends on itself": {
			kind: "Looper", may: configMaps, spec: "{a: looper}",
			template: configMap + namedChild + "}" +
				existing("ConfigMap", `name: "${self.spec.a}"`, "existing.metadata.resourceVersion"),
			want: []string{"Invalid", "spec.resources[1].externalRef: ConfigMap NAMESPACE/looper is a child of the instance"},
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
			then: (*scene).deleteWithUnreadableChild,
			want: []string{"Deleting", "waiting for a child of kind Secret to be deleted"},
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
			then:   func(s *scene) { s.fill(s.name, base64.StdEncoding.EncodeToString([]byte(foreignText))) },
			want:   []string{"Rejected", "422 Invalid", "its message is not shown", "spec.type: FieldValueNotSupported"},
			absent: []string{"v1 Service keeper-service"},
		},
		"tenant inventory: someone else's object is marked as a child": {
			kind: "Marker", template: anywhere, fields: []string{"  allowedNamespaces: [test-*]"}, may: configMaps,
			spec: "{a: NAMESPACE}", then: (*scene).manipulateInventory,
			want: []string{"Forbidden", "as ServiceAccount NAMESPACE/marker: ",
				`cannot delete resource "configmaps" in API group "" in the namespace "OTHER"`},
			check: func(s *scene) {
				for _, kind := range []string{"ConfigMap", "Secret"} {
					if obj, err := s.get("v1", kind, s.other+"/marked"); err != nil || obj.GetDeletionTimestamp() != nil {
						s.Errorf("got another user's %s %v, %v", kind, obj, err)
					}
				}
			},
		},
		"tenant inventory: a label that is reserved for the platform": {
			kind: "Label", template: configMap + `metadata: {name: label, labels: "${{self.spec.a: self.spec.b}}"}}`,
			may: configMaps, spec: "{a: platform.example.com/parent, b: other}",
			want:   []string{"Invalid", "spec.resources[0].template.metadata.labels: keys under platform.example.com/"},
			absent: []string{"v1 ConfigMap label"},
		},
		"tenant claim: an instance has the name of someone else's object": {
			kind: "Taker", template: `{apiVersion: v1, kind: Service, metadata: {name: "${self.spec.a}"},
        spec: {ports: [{port: 81}]}}`,
			may: []rbacv1.PolicyRule{rule(writeChildren, "", "services")}, spec: "{a: theirs}",
			want:  []string{"Conflict", "theirs", "this controller did not create it, and adoption is not enabled"},
			check: (*scene).checkService,
		},
		"tenant claim: a fake child is created before the platform creates it": {
			kind: "Forger", template: configMap + `metadata: {name: "${self.spec.a}"}, data: {text: "${self.spec.a}"}}`,
			may: configMaps, spec: "{a: genuine}", then: (*scene).createFakeChild,
			check: func(s *scene) {
				s.wait("v1", "ConfigMap", "fake", has("fake", "data", "text"))
				s.waitGone("v1", "ConfigMap", "genuine")
			},
		},
		"tenant namespace: a namespace that the Blueprint does not list": {
			kind: "Stayer", template: anywhere, fields: []string{"  allowedNamespaces: [other-*]"}, may: configMaps,
			spec:   "{a: OTHER}",
			want:   []string{"Invalid", "spec.resources[0].template.metadata.namespace: ", "OTHER", "spec.allowedNamespaces"},
			absent: []string{"v1 ConfigMap OTHER/stayer"},
		},
		"tenant namespace: a namespace in which the ServiceAccount has no permissions": {
			kind: "Mover", template: anywhere, fields: []string{"  allowedNamespaces: [test-*]"}, may: configMaps,
			spec: "{a: OTHER}",
			want: []string{"Forbidden", "as ServiceAccount NAMESPACE/mover: ",
				`cannot patch resource "configmaps" in API group "" in the namespace "OTHER"`},
			absent: []string{"v1 ConfigMap OTHER/mover"},
		},
	}
}

// The platform has all permissions. Authors and tenants can use only those of the ServiceAccount.
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
	attempts := attacks()
	maps.Copy(attempts, combinedAttacks())
	for name, attack := range attempts {
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
