package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// change is a text of the Blueprint of websites that is replaced.
type change struct{ old, new string }

func changed(text string, changes ...change) string {
	for _, c := range changes {
		if !strings.Contains(text, c.old) {
			panic("the Blueprint has no " + c.old)
		}
		text = strings.Replace(text, c.old, c.new, 1)
	}
	return text
}

func TestEachMistakeIsExplained(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(changed(websites, change{"name: websites.GROUP", "name: first.GROUP"}, change{"kind: Website", "kind: First"})) // once there is the type
	deep := strings.Repeat("{a: ", 80) + "1" + strings.Repeat("}", 80)
	for name, test := range map[string]struct {
		changes []change
		refused string   // by the API server at once, if not empty
		want    []string // in Accepted, otherwise
	}{
		"a field that the schema has not": {
			changes: []change{{"${self.spec.text}", "${self.spec.txt}"}},
			want:    []string{"Invalid", "spec.resources[1].template.data.text: ${self.spec.txt}: undefined field 'txt'"},
		},
		"an expression that is none": {
			changes: []change{{"${self.spec.text}", "${self.spec.}"}},
			want:    []string{"spec.resources[1].template.data.text", "no viable alternative at input"},
		},
		"an expression that does not end": {
			changes: []change{{"${self.spec.text}", "${self.spec.text"}},
			want:    []string{"spec.resources[1].template.data.text"},
		},
		"another resource that there is not": {
			changes: []change{{"${service.spec.clusterIP}", "${server.spec.clusterIP}"}},
			want:    []string{"spec.resources[0].template.data.address: ${server.spec.clusterIP}: undeclared reference to 'server'"},
		},
		"a cycle": {
			changes: []change{{"selector: {app: \"${self.metadata.name}\"}", "selector: {app: \"${route.metadata.name}\"}"}},
			want:    []string{"refer to each other in a cycle: route -> service -> route"},
		},
		"a condition that is no bool": {
			changes: []change{{"service.spec.clusterIP != ''", "service.spec.clusterIP + ''"}},
			want:    []string{"spec.resources[2].readyWhen[0]"},
		},
		"a wish that depends on another resource": {
			changes: []change{{"self.spec.?public.orValue(true)", "page.data.text == ''"}},
			want:    []string{"spec.resources[0].includeWhen[0]", "whether a resource is wanted is decided by self alone"},
		},
		"a kind that there is not": {
			changes: []change{{"kind: Service", "kind: Servise"}},
			want:    []string{"spec.resources[2].template: there is no kind Servise in v1; when there is"},
		},
		"a kind in a version that there is not": {
			changes: []change{{"apiVersion: v1\n        kind: Service", "apiVersion: v2\n        kind: Service"}},
			want:    []string{"spec.resources[2].template: there is no kind Service in v2"},
		},
		"a kind in lower case": {
			changes: []change{{"kind: Service", "kind: service"}},
			want:    []string{"spec.resources[2].template: there is no kind service in v1: did you mean Service in v1?"},
		},
		"a kind in a group that it has left": {
			changes: []change{{"apiVersion: v1\n        kind: Service", "apiVersion: extensions/v1beta1\n        kind: Service"}},
			want:    []string{"spec.resources[2].template: there is no kind Service in extensions/v1beta1: did you mean Service in v1?"},
		},
		"a list": {
			changes: []change{{"kind: Service", "kind: List"}},
			want:    []string{"spec.resources[2].template: there is no kind List in v1"},
		},
		"its own kind": {
			changes: []change{{"apiVersion: v1\n        kind: Service", "apiVersion: GROUP/v1\n        kind: Website"}},
			want:    []string{"spec.resources[2].template.kind: an instance cannot become instances of its own type"},
		},
		"no name": {
			changes: []change{{"metadata: {name: \"${self.metadata.name}-page\"}", "metadata: {generateName: page-}"}},
			want:    []string{"spec.resources[1].template.metadata.generateName: would make another object each time"},
		},
		"a field of the server's": {
			changes: []change{{"metadata: {name: \"${self.metadata.name}-page\"}", "metadata: {name: a, uid: b}"}},
			want:    []string{"spec.resources[1].template.metadata.uid: must not be set in a template"},
		},
		"a namespace of what is in none": {
			changes: []change{{"kind: Service\n        metadata: {name: \"${self.metadata.name}\"}", "kind: Namespace\n        metadata: {name: a, namespace: b}"}},
			want:    []string{"spec.resources[2].template.metadata.namespace: a Namespace is in no namespace"},
		},
		"no namespace for what is in one": {
			changes: []change{{"kind: Website", "kind: Website\n    scope: Cluster"}},
			want:    []string{"metadata.namespace: is required: the instance is in no namespace"},
		},
		"a schema that is none": {
			changes: []change{{"text: {type: string}", "text: {type: text}"}},
			want:    []string{"spec.type.schema"},
		},
		"a schema with what Kubernetes has not": {
			changes: []change{{"text: {type: string}", "text: {type: string, typo: 1}"}},
			want:    []string{"spec.type.schema.properties.spec.properties.text.typo: is no keyword of a schema: did you mean type?"},
		},
		"a column of a field that the schema has not": {
			changes: []change{{"kind: Website", "kind: Website\n    printerColumns: [{name: Text, type: string, jsonPath: .spec.txt}]"}},
			want:    []string{"spec.type.printerColumns[0].jsonPath: .spec.txt: the schema has no such field: did you mean text?"},
		},
		"a schema without spec": {
			changes: []change{{"        spec:\n", "        specification:\n"}},
			want:    []string{"spec.type.schema.properties.specification: is neither spec nor status", "has no spec"},
		},
		"a schema of the object instead of its properties": {
			changes: []change{{"      properties:\n        spec:\n          type: object\n          properties:\n            text: {type: string}\n            public: {type: boolean}\n", "      spec: {type: object}\n"}},
			want:    []string{"spec.type.schema.spec: put spec under properties"},
		},
		"a group that is no domain": {
			changes: []change{{"group: GROUP", "group: \"GROUP!\""}},
			want:    []string{"spec.type"},
		},
		"a group of Kubernetes' own": {
			changes: []change{{"group: GROUP", "group: GROUP.k8s.io"}},
			want:    []string{"api-approved.kubernetes.io"},
		},
		"a pattern that is none": {
			changes: []change{{"text: {type: string}", "text: {type: string, pattern: \"(\"}"}},
			want:    []string{"spec.type.schema.properties[spec].properties[text].pattern"},
		},
		"the platform's own type": {
			changes: []change{{"group: GROUP", "group: platform.example.com"}, {"kind: Website", "kind: Blueprint"}},
			want:    []string{"Blueprints are the platform's own"},
		},
		"the platform's own type by name": {
			changes: []change{{websites[strings.Index(websites, "    group:"):strings.Index(websites, "  resources:")], "    crd: blueprints.platform.example.com\n"}},
			want:    []string{"Blueprints are the platform's own"},
		},
		"a template that is too deep": {
			changes: []change{{"{text: \"${self.spec.text}\"}", deep}},
			want:    []string{"spec.resources[1].template: is deeper than 64"},
		},
		"an expression that costs too much": {
			changes: []change{{"${self.spec.text}", "${string(lists.range(1000).all(a, lists.range(1000).all(b, lists.range(1000).all(c, a+b+c >= 0))))}"}},
			want:    []string{"spec.resources[1].template.data.text"},
		},
		"neither a type nor a name of one": {
			changes: []change{{"kind: Website\n", "\n"}},
			refused: "group, version, kind and schema are required without crd",
		},
		"a type and a name of one": {
			changes: []change{{"group: GROUP", "group: GROUP\n    crd: a.b.c"}},
			refused: "either crd, or group, version, kind and schema",
		},
		"an id twice": {
			changes: []change{{"id: page", "id: route"}},
			refused: `duplicate entries for key [id="route"]`,
		},
		"an id that is none": {
			changes: []change{{"id: page", "id: the-page"}},
			refused: "spec.resources[1].id",
		},
		"no kind": {
			changes: []change{{"kind: Service", "sort: Service"}},
			refused: "spec.resources[2].template.kind: Required value",
		},
		"another deletion policy": {
			changes: []change{{"spec:\n", "spec:\n  deletionPolicy: Keep\n"}},
			refused: `Unsupported value: "Keep"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *a
			sub.T = t
			sub.group = strings.ToLower(strings.NewReplacer(" ", "-", "'", "").Replace(name)) + "." + a.group
			text := changed(websites, test.changes...)
			if test.refused != "" {
				if _, err := sub.tryApply(text); err == nil || !strings.Contains(err.Error(), test.refused) {
					t.Errorf("got the error %v, want %q", err, test.refused)
				}
				return
			}
			sub.apply(text)
			sub.waitBlueprint("websites", is("Accepted", "False", test.want...), is("Serving", "False"))
		})
	}
	for name, c := range map[string]change{
		"another kind":    {"kind: Website", "kind: Webpage"},
		"another group":   {"group: GROUP", "group: other.GROUP"},
		"another version": {"version: v1", "version: v2"},
		"another scope":   {"kind: Website", "kind: Website\n    scope: Cluster"},
	} {
		a.apply(websites)
		if _, err := a.tryApply(changed(websites, c)); err == nil || !strings.Contains(err.Error(), "a Blueprint cannot become that of another type") {
			t.Errorf("%s: got the error %v", name, err)
		}
	}
	// None of them has done harm.
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
}

func TestANamedTypeThatAppearsLaterIsServed(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(named("websites"))
	a.waitBlueprint("websites", is("Accepted", "True"), is("TypeEstablished", "False", "there is no CustomResourceDefinition websites."+a.group), is("Serving", "False", "waiting for the type"))

	a.apply(strings.Replace(theirs, "STATUS", "", 1))
	a.waitBlueprint("websites", is("Accepted", "False", "ConsentMissing"))
	a.allow(`"websites.` + a.group + `"`)
	a.waitBlueprint("websites", is("Accepted", "False", "TypeHasNoStatus", "version v1 has no status subresource"))
	crd := a.apply(theirsWithStatus)
	a.waitBlueprint("websites", is("Accepted", "True"), is("TypeEstablished", "True"), is("Serving", "True"))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	// A changed schema is a reason to look again.
	a.apply(strings.Replace(theirsWithStatus, "text:", "words:", 1))
	a.waitBlueprint("websites", is("Accepted", "False", "undefined field 'text'"), is("Serving", "True"))
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
	now, err := a.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", "websites."+a.group)
	if err != nil || now.GetUID() != crd.GetUID() || len(now.GetAnnotations()) != 1 {
		t.Errorf("a definition of somebody else's is %v, %v", now.GetAnnotations(), err)
	}
}

func TestATypeOfSomebodyElsesIsNotTaken(t *testing.T) {
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
	a.waitBlueprint("websites", is("Accepted", "False", "TypeNotOurs", "name it with spec.type.crd"), is("Serving", "False"))
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
	now, err := a.crds.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), "websites."+a.group, metav1.GetOptions{})
	if err != nil || now.UID != crd.GetUID() || now.DeletionTimestamp != nil || now.Spec.Versions[0].Subresources != nil {
		t.Errorf("the definition is %+v, %v", now, err)
	}
}

func TestExpressionsOnChildrenAreCheckedWhereTheirTypeIsDescribed(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(deleting)
	a.waitBlueprint("websites", is("Serving", "True"))
	a.apply(changed(markets, change{"site.status.conditions", "site.status.condition"}))
	a.waitBlueprint("markets", is("Accepted", "False", "spec.resources[0].readyWhen[0]", "undefined field 'condition'"))
	a.apply(markets)
	a.waitBlueprint("markets", is("Accepted", "True"))
}

func TestOfTwoBlueprintsTheOlderHasTheType(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(deleting)
	a.waitBlueprint("websites", is("Serving", "True"))
	a.apply(changed(websites, change{"name: websites.GROUP", "name: aaa.GROUP"}, change{"${self.spec.text}", "other"}))
	a.waitBlueprint("aaa", is("Accepted", "False", "TypeClaimed", "websites."+a.group+" is already claimed by Blueprint websites."+a.group), is("Serving", "False"))
	a.apply(flowers)
	a.wait("v1", "ConfigMap", "flowers-page", has("roses", "data", "text"))
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitBlueprint("aaa", is("Accepted", "True"), is("TypeEstablished", "True"), is("Serving", "True"))
	a.apply(flowers)
	a.wait("v1", "ConfigMap", "flowers-page", has("other", "data", "text"))
}

// least is what the platform needs without any template.
func least() []rbacv1.PolicyRule {
	rule := func(group, resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: strings.Split(resource, ","), Verbs: verbs}
	}
	return []rbacv1.PolicyRule{
		rule("coordination.k8s.io", "leases", "get", "create", "update"),
		rule("apiextensions.k8s.io", "customresourcedefinitions", "get", "list", "watch", "create", "update", "patch", "delete"),
		rule("apiregistration.k8s.io", "apiservices", "list", "watch"),
		rule("platform.example.com", "blueprints", "get", "list", "watch", "patch"),
		rule("platform.example.com", "blueprints/status", "patch"),
		rule("apps", "controllerrevisions", "get", "list", "watch", "create", "patch", "delete"),
	}
}

func TestAMissingRightIsExplainedAndLookedForAgain(t *testing.T) {
	a := newAPI(t)
	name := strings.Split(a.group, ".")[0]
	all := []string{"get", "list", "watch", "create", "patch", "delete"}
	rules := append(least(),
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: all},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"get", "list", "watch"}},
		rbacv1.PolicyRule{APIGroups: []string{a.group}, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch", "patch"}})
	startServing(t, a.account(name, rules...))
	a.apply(websites)
	a.waitBlueprint("websites", is("Accepted", "False", "RightMissing",
		"spec.resources[2].template: the platform may not create, patch, delete services", `grant it with a ClusterRole that has the label platform.example.com/aggregate-to-dynamic-controller: "true"`))
	if _, err := a.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", "websites."+a.group); !apierrors.IsNotFound(err) {
		t.Errorf("a refused Blueprint has its type: %v", err)
	}
	role, err := a.kube.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: all})
	if _, err := a.kube.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True"))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	// What the schemas of built-in kinds are every authenticated user may read, and so may it.
	a.apply(changed(websites, change{"data: {text: \"${self.spec.text}\"}", "data: {text: 3}"}))
	a.waitBlueprint("websites", is("Accepted", "False", "spec.resources[1].template.data.text: has to be a string"), is("Serving", "True"))
}

func TestWhatAnInstanceWaitsForOrFailsOfIsSaid(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(changed(websites,
		change{"service.spec.clusterIP != ''", "has(service.metadata.labels) && 'open' in service.metadata.labels"},
		change{"${service.spec.clusterIP}:80", "${service.metadata.labels.open}"}))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "False", "Waiting", "service: is not ready: readyWhen has(service.metadata.labels)", "route: waiting for service"))
	a.apply("{apiVersion: v1, kind: Service, metadata: {name: flowers, labels: {open: always}}}")
	a.wait("v1", "ConfigMap", "flowers-route", has("always", "data", "address"))
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))

	a.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs-page}, data: {text: theirs}}")
	a.Cleanup(func() { a.delete("v1", "ConfigMap", "theirs-page") })
	a.apply(changed(flowers, change{"flowers", "theirs"}))
	a.wait("GROUP/v1", "Website", "theirs", is("Ready", "False", "Conflict", "theirs-page", "nobody controls it, and it is not to be adopted"))
	a.wait("v1", "ConfigMap", "theirs-page", has("theirs", "data", "text"))

	a.apply(changed(flowers, change{"flowers", "silent"}, change{"spec: {text: roses}", "spec: {public: true}"}))
	a.wait("GROUP/v1", "Website", "silent", is("Ready", "False", "Invalid", "spec.resources[1].template.data.text", "text", "has()"))

	a.apply(changed(flowers, change{"flowers", strings.Repeat("long-", 20) + "name"}))
	a.wait("GROUP/v1", "Website", strings.Repeat("long-", 20)+"name", is("Ready", "False", "Rejected", "Service", "must be no more than 63"))
	a.waitBlueprint("websites", counted(4, 1, 3))
}

func TestChildrenInOtherNamespacesAreKeptAndCleanedUp(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	elsewhere := changed(deleting, change{"metadata: {name: \"${self.metadata.name}-page\"}", "metadata: {name: \"${self.metadata.name}-page\", namespace: default}"})
	a.apply(elsewhere)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.wait("v1", "ConfigMap", "default/flowers-page", has("roses", "data", "text"))
	a.delete("v1", "ConfigMap", "default/flowers-page")
	a.wait("v1", "ConfigMap", "default/flowers-page", has("roses", "data", "text"))
	a.delete("GROUP/v1", "Website", "flowers")
	a.waitGone("GROUP/v1", "Website", "flowers")
	a.waitGone("v1", "ConfigMap", "default/flowers-page")

	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
	if _, err := a.get("v1", "ConfigMap", "default/flowers-page"); !apierrors.IsNotFound(err) {
		t.Errorf("a child is left: %v", err)
	}

	// Retained, an instance can be deleted though nobody cleans up after it.
	a.apply(strings.Replace(elsewhere, "Delete", "Retain", 1))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
	a.delete("GROUP/v1", "Website", "flowers")
	a.waitGone("GROUP/v1", "Website", "flowers")
	a.delete("v1", "ConfigMap", "default/flowers-page")
}

// Each of these is refused within its limits, and the Blueprints beside it are served as before.
func TestAHostileBlueprintHarmsNoOther(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	a.apply(changed(websites, change{"name: websites.GROUP", "name: good.GROUP"}))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	hostile := *a
	hostile.group = "hostile." + a.group

	resource := func(i int, data string) string {
		return fmt.Sprintf(`
    - id: r%d
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}-%d"}, data: {a: %q}}`, i, i, data)
	}
	blueprint := func(resources string) string { return websites[:strings.Index(websites, "    - id:")] + resources }
	var laughs, many strings.Builder
	laughs.WriteString(resource(0, strings.Repeat("ha", 500)))
	for i := 1; i < 20; i++ {
		laughs.WriteString(resource(i, strings.Repeat(fmt.Sprintf("${r%d.data.a}", i-1), 10)))
	}
	for i := range 100 {
		many.WriteString(resource(i, "${string(lists.range(300).all(a, lists.range(300).all(b, a + b >= 0)))}"))
	}
	for name, test := range map[string]struct {
		text string
		want []string // in Accepted; or the instance's Ready if it is accepted
		ok   bool
	}{
		"laughs":    {text: blueprint(laughs.String()), ok: true, want: []string{"bytes"}},
		"expensive": {text: blueprint(many.String()), ok: true, want: []string{"cost"}},
		"deep":      {text: blueprint(resource(0, "${"+strings.Repeat("(", 500)+"1"+strings.Repeat(")", 500)+"}")), want: []string{"spec.resources[0].template.data.a"}},
		"huge":      {text: blueprint(resource(0, strings.Repeat("x", 140<<10))), want: []string{"spec.resources[0].template: has more than"}},
		"regexes":   {text: blueprint(resource(0, "${string(self.metadata.name.matches('((a{1,100}){1,100}){1,100}'))}")), want: []string{"spec.resources[0].template.data.a"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := hostile
			h.T, h.group = t, name+"."+hostile.group
			h.apply(test.text)
			if test.ok {
				h.waitBlueprint("websites", is("Serving", "True"))
				h.apply(flowers)
				h.wait("GROUP/v1", "Website", "flowers", is("Ready", "False", test.want...))
			} else {
				h.waitBlueprint("websites", is("Accepted", "False", test.want...))
			}
			began := time.Now()
			good := *a
			good.T = t
			good.apply(strings.Replace(flowers, "roses", "grown beside "+name, 1))
			good.wait("v1", "ConfigMap", "flowers-page", has("grown beside "+name, "data", "text"))
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("another Blueprint's instance took %s", took)
			}
		})
	}
	if got := p.logged(line{Msg: "panic"}); len(got) > 0 {
		t.Errorf("it panicked: %+v", got)
	}
}
