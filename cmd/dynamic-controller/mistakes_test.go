package main

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// change replaces a part of a text.
type change struct{ old, new string }

func changed(text string, changes ...change) string {
	for _, c := range changes {
		if !strings.Contains(text, c.old) {
			panic("the text does not contain " + c.old)
		}
		text = strings.Replace(text, c.old, c.new, 1)
	}
	return text
}

// mistake changes the Blueprint websites into an invalid one.
type mistake struct {
	changes  []change
	rejected string   // part of the API server's error; if empty, the Blueprint is stored
	want     []string // parts of the Accepted condition of a stored Blueprint
	offline  string   // part of the output of validate, if different
}

func mistakes() map[string]mistake {
	deep := strings.Repeat("{a: ", 80) + "1" + strings.Repeat("}", 80)
	return map[string]mistake{
		"unknown field": {
			changes: []change{{"${self.spec.text}", "${self.spec.txt}"}},
			want:    []string{"Invalid", "spec.resources[1].template.data.text: ${self.spec.txt}: unknown field \"txt\""},
		},
		"incomplete expression": {
			changes: []change{{"${self.spec.text}", "${self.spec.}"}},
			want:    []string{"spec.resources[1].template.data.text", "syntax error"},
		},
		"unterminated expression": {
			changes: []change{{"${self.spec.text}", "${self.spec.text"}},
			want:    []string{"spec.resources[1].template.data.text"},
		},
		"unknown resource": {
			changes: []change{{"${service.spec.clusterIP}", "${server.spec.clusterIP}"}},
			want: []string{"spec.resources[0].template.data.address: ${server.spec.clusterIP}: unknown name " +
				"\"server\""},
		},
		"cycle": {
			changes: []change{{"selector: {app: \"${self.metadata.name}\"}", "selector: {app: \"${route.metadata.name}\"}"}},
			want:    []string{"refers to itself in a cycle: route -> service -> route"},
		},
		"readyWhen that is not a bool": {
			changes: []change{{"service.spec.clusterIP != ''", "service.spec.clusterIP + ''"}},
			want:    []string{"spec.resources[2].readyWhen[0]"},
		},
		"includeWhen that depends on the resource itself": {
			changes: []change{{"self.spec.?public.orValue(true)", "route.data.address == ''"}},
			want:    []string{"spec.resources[0].includeWhen[0]", "must not refer to the resource itself"},
		},
		"collection of a value that is not a list": {
			changes: []change{{"    - id: page\n", "    - id: page\n      forEach: [{word: \"${self.spec.text}\"}]\n"}},
			want:    []string{"spec.resources[1].forEach[0].word: ${self.spec.text}: must be a list, not a string"},
		},
		"collection with the same name for all items": {
			changes: []change{{"    - id: page\n", "    - id: page\n      forEach: [{word: \"${['a', 'b']}\"}]\n"}},
			want:    []string{"spec.resources[1].template.metadata.name: must read word"},
		},
		"variable that YAML reads as a boolean": {
			changes: []change{{"    - id: page\n", "    - id: page\n      forEach: [{y: \"${['a', 'b']}\"}]\n"}},
			want: []string{`spec.resources[1].forEach[0].true: "true" is reserved; use a different name. YAML reads y, yes ` +
				"and on as true unless they are in quotes"},
		},
		"field that YAML reads as a boolean": {
			changes: []change{
				{"public: {type: boolean}", "public: {type: boolean}\n            n: {type: integer}"},
				{"${self.spec.text}", "${string(self.spec.n)}"},
			},
			want: []string{`unknown field "n" (line 1, column 17); the schema has a field "false"; YAML reads the ` +
				"unquoted key n as that name, so put the key in quotes"},
		},
		"id that YAML reads as a boolean": {
			changes:  []change{{"    - id: page\n", "    - id: on\n"}},
			rejected: ".spec.resources[id=true].id: expected string",
			offline: "spec.resources[1].id in body must be of type string: \"boolean\"; kubectl reads on as true: write it in " +
				"quotes if it is a string",
		},
		"collection with two variables in one forEach entry": {
			changes:  []change{{"    - id: page\n", "    - id: page\n      forEach: [{a: \"${[1]}\", b: \"${[1]}\"}]\n"}},
			rejected: "spec.resources[1].forEach[0]: Too many: 2: must have at most 1 item",
		},
		"unknown kind": {
			changes: []change{{"kind: Service", "kind: Servise"}},
			want:    []string{"spec.resources[2].template: unknown kind Servise in v1; the Blueprint will be checked again"},
		},
		"unknown version of a kind": {
			changes: []change{{"apiVersion: v1\n        kind: Service", "apiVersion: v2\n        kind: Service"}},
			want:    []string{"spec.resources[2].template: unknown kind Service in v2"},
		},
		"kind in lower case": {
			changes: []change{{"kind: Service", "kind: service"}},
			want:    []string{"spec.resources[2].template: unknown kind service in v1; did you mean Service in v1?"},
		},
		"kind in its former group": {
			changes: []change{{"apiVersion: v1\n        kind: Service",
				"apiVersion: extensions/v1beta1\n        kind: Service"}},
			want: []string{"spec.resources[2].template: unknown kind Service in extensions/v1beta1; did you mean " +
				"Service in v1?"},
		},
		"list": {
			changes: []change{{"kind: Service", "kind: List"}},
			want:    []string{"spec.resources[2].template: unknown kind List in v1"},
		},
		"own kind": {
			changes: []change{{"apiVersion: v1\n        kind: Service", "apiVersion: GROUP/v1\n        kind: Website"}},
			want:    []string{"spec.resources[2].template.kind: must not be the Blueprint's own type"},
		},
		"no name": {
			changes: []change{{"metadata: {name: \"${self.metadata.name}-page\"}", "metadata: {generateName: page-}"}},
			want:    []string{"spec.resources[1].template.metadata.generateName: must not be set; set metadata.name"},
		},
		"field that the server sets": {
			changes: []change{{"metadata: {name: \"${self.metadata.name}-page\"}", "metadata: {name: a, uid: b}"}},
			want:    []string{"spec.resources[1].template.metadata.uid: must not be set in a template"},
		},
		"namespace of a cluster-scoped object": {
			changes: []change{{"kind: Service\n        metadata: {name: \"${self.metadata.name}\"}",
				"kind: Namespace\n        metadata: {name: a, namespace: b}"}},
			want: []string{"spec.resources[2].template.metadata.namespace: must not be set, because " +
				"Namespace is cluster-scoped"},
		},
		"namespaced object without a namespace": {
			changes: []change{{"kind: Website", "kind: Website\n    scope: Cluster"}},
			want:    []string{"metadata.namespace: is required, because"},
		},
		"invalid schema": {
			changes: []change{{"text: {type: string}", "text: {type: text}"}},
			want:    []string{"spec.type.schema"},
		},
		"unknown keyword in the schema": {
			changes: []change{{"text: {type: string}", "text: {type: string, typo: 1}"}},
			want:    []string{"spec.type.schema.properties.spec.properties.text.typo: unknown field; did you mean type?"},
		},
		"column of an unknown field": {
			changes: []change{{"kind: Website",
				"kind: Website\n    printerColumns: [{name: Text, type: string, jsonPath: .spec.txt}]"}},
			want: []string{"spec.type.printerColumns[0].jsonPath: unknown field .spec.txt; did you mean text?"},
		},
		"schema without spec": {
			changes: []change{{"        spec:\n", "        specification:\n"}},
			want:    []string{"spec.type.schema.properties.specification: must be under spec or status", "must contain spec"},
		},
		"schema without properties": {
			changes: []change{{"      properties:\n        spec:\n          type: object\n          properties:\n            " +
				"text: {type: string}\n            public: {type: boolean}\n", "      spec: {type: object}\n"}},
			want: []string{"spec.type.schema.spec: must be under properties"},
		},
		"invalid group": {
			changes: []change{{"group: GROUP", "group: \"GROUP!\""}},
			want:    []string{"spec.type"},
		},
		"group of Kubernetes": {
			changes: []change{{"group: GROUP", "group: GROUP.k8s.io"}},
			want:    []string{"api-approved.kubernetes.io"},
		},
		"invalid pattern": {
			changes: []change{{"text: {type: string}", "text: {type: string, pattern: \"(\"}"}},
			want:    []string{"spec.type.schema.properties[spec].properties[text].pattern"},
		},
		"type of the platform": {
			changes: []change{{"group: GROUP", "group: platform.example.com"}, {"kind: Website", "kind: Blueprint"}},
			want:    []string{"Blueprint is reserved for the platform"},
		},
		"type in the platform's API group": {
			changes: []change{{"group: GROUP", "group: platform.example.com"}},
			want:    []string{"the API group platform.example.com and its subdomains are reserved for the platform"},
		},
		"type of the platform by name": {
			changes: []change{{websites[strings.Index(websites, "    group:"):strings.Index(websites, "  resources:")],
				"    crd: blueprints.platform.example.com\n"}},
			want: []string{"Blueprint is reserved for the platform"},
		},
		"template that is too deep": {
			changes: []change{{"{text: \"${self.spec.text}\"}", deep}},
			want:    []string{"spec.resources[1].template: has more than 64 levels"},
		},
		"expensive expression": {
			changes: []change{{"${self.spec.text}",
				"${string(lists.range(1000).all(a, lists.range(1000).all(b, lists.range(1000).all(c, a+b+c >= 0))))}"}},
			want: []string{"spec.resources[1].template.data.text"},
		},
		"neither a type nor a name": {
			changes:  []change{{"kind: Website\n", "\n"}},
			rejected: "group, version, kind and schema are required unless crd is set",
		},
		"both a type and a name": {
			changes:  []change{{"group: GROUP", "group: GROUP\n    crd: a.b.c"}},
			rejected: "set either crd, or group, version, kind and schema",
		},
		"duplicate id": {
			changes:  []change{{"id: page", "id: route"}},
			rejected: `duplicate entries for key [id="route"]`, // by server-side apply
			offline:  `spec.resources[1]: Duplicate value: {"id":"route"}`,
		},
		"invalid id": {
			changes:  []change{{"id: page", "id: the-page"}},
			rejected: "spec.resources[1].id",
		},
		"no kind": {
			changes:  []change{{"kind: Service", "sort: Service"}},
			rejected: "spec.resources[2].template.kind: Required value",
		},
		"unknown deletion policy": {
			changes:  []change{{"spec:\n", "spec:\n  deletionPolicy: Keep\n"}},
			rejected: `Unsupported value: "Keep"`,
		},
	}
}

func TestMistakes_AreReported(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	// Wait until the type of Blueprints is served.
	a.apply(changed(websites, change{"name: websites.GROUP", "name: first.GROUP"}, change{"kind: Website", "kind: First"}))
	for name, test := range mistakes() {
		t.Run(name, func(t *testing.T) {
			sub := *a
			sub.T = t
			sub.group = strings.ToLower(strings.NewReplacer(" ", "-", "'", "").Replace(name)) + "." + a.group
			text := changed(websites, test.changes...)
			if test.rejected != "" {
				if _, err := sub.tryApply(text); err == nil || !strings.Contains(err.Error(), test.rejected) {
					t.Errorf("got error %v, want %q", err, test.rejected)
				}
				return
			}
			sub.apply(text)
			sub.waitBlueprint("websites", is("Accepted", "False", test.want...), is("Serving", "False"))
		})
	}
	for name, c := range map[string]change{
		"other kind":    {"kind: Website", "kind: Webpage"},
		"other group":   {"group: GROUP", "group: other.GROUP"},
		"other version": {"version: v1", "version: v2"},
		"other scope":   {"kind: Website", "kind: Website\n    scope: Cluster"},
	} {
		a.apply(websites)
		if _, err := a.tryApply(changed(websites, c)); err == nil ||
			!strings.Contains(err.Error(), "spec.type is immutable; create another Blueprint") {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	// The valid Blueprint is not affected.
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
}

func TestNamedType_CreatedLater(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(withNamedType("websites"))
	a.waitBlueprint("websites", is("Accepted", "True"), is("TypeEstablished", "False",
		"the CustomResourceDefinition websites."+a.group+" does not exist"),
		is("Serving", "False", "waiting for the CustomResourceDefinition to be created"))

	a.apply(strings.Replace(existingCRD, "STATUS", "", 1))
	a.waitBlueprint("websites", is("Accepted", "False", "ConsentMissing"))
	a.setConsent(`"websites.` + a.group + `"`)
	a.waitBlueprint("websites", is("Accepted", "False", "TypeHasNoStatus", "version v1 has no status subresource"))
	crd := a.apply(existingCRDWithStatus)
	a.waitBlueprint("websites", is("Accepted", "True"), is("TypeEstablished", "True"), is("Serving", "True"))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	// A change to the schema triggers another check.
	a.apply(strings.Replace(existingCRDWithStatus, "text:", "words:", 1))
	a.waitBlueprint("websites", is("Accepted", "False", "unknown field \"text\""), is("Serving", "True"))
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
	now, err := a.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", "websites."+a.group)
	if err != nil || now.GetUID() != crd.GetUID() || len(now.GetAnnotations()) != 1 {
		t.Errorf("got annotations %v of the existing CustomResourceDefinition, %v", now.GetAnnotations(), err)
	}
}

func TestExistingType_IsNotTakenOver(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	crd := a.apply(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: websites.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {kind: Website, plural: websites}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`)
	a.apply(deleting)
	a.waitBlueprint("websites", is("Accepted", "False", "TypeNotOwned", "name it in spec.type.crd"),
		is("Serving", "False"))
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
	now, err := a.crds.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), "websites."+a.group,
		metav1.GetOptions{})
	if err != nil || now.UID != crd.GetUID() || now.DeletionTimestamp != nil || now.Spec.Versions[0].Subresources != nil {
		t.Errorf("got CustomResourceDefinition %+v, %v", now, err)
	}
}

func TestExpressions_AreCheckedAgainstTheSchemasOfChildren(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(deleting)
	a.waitBlueprint("websites", is("Serving", "True"))
	a.apply(changed(markets, change{"site.status.conditions", "site.status.condition"}))
	a.waitBlueprint("markets", is("Accepted", "False", "spec.resources[0].readyWhen[0]", "unknown field \"condition\""))
	a.apply(markets)
	a.waitBlueprint("markets", is("Accepted", "True"))
}

func TestClaims_FirstBlueprintKeepsTheType(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(deleting)
	a.waitBlueprint("websites", is("Serving", "True"))
	a.apply(changed(websites, change{"name: websites.GROUP", "name: aaa.GROUP"}, change{"${self.spec.text}", "other"}))
	a.waitBlueprint("aaa", is("Accepted", "False", "TypeClaimed",
		"websites."+a.group+" is already claimed by Blueprint websites."+a.group), is("Serving", "False"))
	a.apply(flowers)
	a.wait("v1", "ConfigMap", "flowers-page", has("roses", "data", "text"))
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitBlueprint("aaa", is("Accepted", "True"), is("TypeEstablished", "True"), is("Serving", "True"))
	a.apply(flowers)
	a.wait("v1", "ConfigMap", "flowers-page", has("other", "data", "text"))
}

// platformRules returns the permissions that the platform needs without any Blueprint.
func platformRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("get,create,update", "coordination.k8s.io", "leases"),
		rule("get,list,watch,create,update,patch,delete", "apiextensions.k8s.io", "customresourcedefinitions"),
		rule("list,watch", "apiregistration.k8s.io", "apiservices"),
		rule("get,list,watch,patch", "platform.example.com", "blueprints"),
		rule("patch", "platform.example.com", "blueprints/status"),
		rule("get,list,watch,create,patch,delete", "apps", "controllerrevisions"),
		rule("create", "events.k8s.io", "events"),
	}
}

func TestPermissions_MissingPermissionsAreReportedAndCheckedAgain(t *testing.T) {
	a := newAPI(t)
	name := a.platformName()
	const all = "get,list,watch,create,patch,delete"
	rules := append(platformRules(), rule(all, "", "configmaps"), rule("get,list,watch", "", "services"),
		rule("get,list,watch,patch", a.group, "*"))
	startServing(t, a.account(name, rules...))
	a.apply(websites)
	a.waitBlueprint("websites", is("Accepted", "False", "PermissionMissing",
		"spec.resources[2].template: the platform has no permission to create, patch, "+
			"delete services", `grant the missing permissions with a ClusterRole `+
			`that has the label platform.example.com/aggregate-to-dynamic-controller: "true"`))
	if _, err := a.get("apiextensions.k8s.io/v1", "CustomResourceDefinition",
		"websites."+a.group); !apierrors.IsNotFound(err) {
		t.Errorf("the type of a rejected Blueprint exists: %v", err)
	}
	role, err := a.kube.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role.Rules = append(role.Rules, rule(all, "", "services"))
	if _, err := a.kube.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True"))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	// All authenticated users, including the platform, can read the schemas of built-in kinds.
	a.apply(changed(websites, change{"data: {text: \"${self.spec.text}\"}", "data: {text: 3}"}))
	a.waitBlueprint("websites", is("Accepted", "False", "spec.resources[1].template.data.text: must be a string"),
		is("Serving", "True"))
}

func TestInstance_ReportsWhyItIsNotReady(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(changed(websites,
		change{"service.spec.clusterIP != ''", "has(service.metadata.labels) && 'open' in service.metadata.labels"},
		change{"${service.spec.clusterIP}:80", "${service.metadata.labels.open}"}))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "False", "Waiting",
		"service: waiting for readyWhen \"has(service.metadata.labels)", "route: waiting for service"))
	a.apply("{apiVersion: v1, kind: Service, metadata: {name: flowers, labels: {open: always}}}")
	a.wait("v1", "ConfigMap", "flowers-route", has("always", "data", "address"))
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))

	a.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs-page}, data: {text: theirs}}")
	a.Cleanup(func() { a.delete("v1", "ConfigMap", "theirs-page") })
	a.apply(changed(flowers, change{"flowers", "theirs"}))
	a.wait("GROUP/v1", "Website", "theirs",
		is("Ready", "False", "Conflict", "theirs-page", "this controller did not create it, and adoption is not enabled"))
	a.wait("v1", "ConfigMap", "theirs-page", has("theirs", "data", "text"))

	a.apply(changed(flowers, change{"flowers", "silent"}, change{"spec: {text: roses}", "spec: {public: true}"}))
	a.wait("GROUP/v1", "Website", "silent",
		is("Ready", "False", "Invalid", "spec.resources[1].template.data.text", "text", "has()"))

	a.apply(changed(flowers, change{"flowers", strings.Repeat("long-", 20) + "name"}))
	a.wait("GROUP/v1", "Website", strings.Repeat("long-", 20)+"name",
		is("Ready", "False", "Rejected", "Service", "must be no more than 63"))
	a.waitBlueprint("websites", hasCounts(4, 1, 3))
}

func TestCrossNamespaceChildren_AreRestoredAndDeleted(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	far := a.addNamespace(a.namespace + "-far")
	crossNamespace := changed(deleting, change{"metadata: {name: \"${self.metadata.name}-page\"}",
		"metadata: {name: \"${self.metadata.name}-page\", namespace: " + far + "}"})
	a.apply(crossNamespace)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.wait("v1", "ConfigMap", far+"/flowers-page", has("roses", "data", "text"))
	a.delete("v1", "ConfigMap", far+"/flowers-page")
	a.wait("v1", "ConfigMap", far+"/flowers-page", has("roses", "data", "text"))
	a.delete("GROUP/v1", "Website", "flowers")
	a.waitGone("GROUP/v1", "Website", "flowers")
	a.waitGone("v1", "ConfigMap", far+"/flowers-page")

	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
	if _, err := a.get("v1", "ConfigMap", far+"/flowers-page"); !apierrors.IsNotFound(err) {
		t.Errorf("a child still exists: %v", err)
	}

	// With the deletion policy Retain, instances can be deleted even though no Blueprint serves them.
	a.apply(strings.Replace(crossNamespace, "Delete", "Retain", 1))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
	a.delete("GROUP/v1", "Website", "flowers")
	a.waitGone("GROUP/v1", "Website", "flowers")
	a.delete("v1", "ConfigMap", far+"/flowers-page")
}
