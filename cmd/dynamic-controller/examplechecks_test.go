package main

import (
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// rejected checks that the API server rejects a patch with the message.
func (e *examples) rejected(apiVersion, kind, name, patch, message string) {
	e.Helper()
	if err := e.patch(apiVersion, kind, name, patch); err == nil || !strings.Contains(err.Error(), message) {
		e.Errorf("%s %s: got error %v, want %q", kind, name, err, message)
	}
}

// absent checks that an object does not exist.
func (e *examples) absent(apiVersion, kind, name string) {
	e.Helper()
	if _, err := e.get(apiVersion, kind, name); !apierrors.IsNotFound(err) {
		e.Errorf("%s %s exists, or: %v", kind, name, err)
	}
}

// exists is a check that accepts any object.
func exists(*unstructured.Unstructured) error { return nil }

// hasList checks the list of strings in a field.
func hasList(want []string, fields ...string) func(*unstructured.Unstructured) error {
	return func(object *unstructured.Unstructured) error {
		got, _, err := unstructured.NestedStringSlice(object.Object, fields...)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("%s is %q, want %q", strings.Join(fields, "."), got, want)
		}
		return err
	}
}

func (e *examples) checkWebApp() {
	const version, name = "apps.example.com/v1", "example-apps/hello"
	e.wait(version, "WebApp", name, all(has("http://hello.example.com", "status", "url"),
		is("Ready", "False", "Waiting", "deployment: waiting for its controller to observe the newest generation")))
	e.setReplicas("Deployment", name, 2)
	e.wait(version, "WebApp", name, all(is("Ready", "True", "all 3 resources are ready"),
		has(int64(2), "status", "replicas")))
	e.wait("networking.k8s.io/v1", "Ingress", name, exists)

	e.change(version, "WebApp", name, `{"spec":{"replicas":3}}`)
	e.setReplicas("Deployment", name, 3)
	e.wait(version, "WebApp", name, all(is("Ready", "True"), has(int64(3), "status", "replicas")))
	e.change(version, "WebApp", name, `{"spec":{"host":null}}`)
	e.wait(version, "WebApp", name, all(has("http://hello.example-apps.svc", "status", "url"),
		is("Ready", "True", "2 of 3 resources are ready; excluded by includeWhen: ingress")))
	e.waitGone("networking.k8s.io/v1", "Ingress", name)

	service := e.wait("v1", "Service", name, exists)
	e.delete("v1", "Service", name)
	e.wait("v1", "Service", name, func(now *unstructured.Unstructured) error {
		if now.GetUID() == service.GetUID() {
			return fmt.Errorf("the deleted Service still exists")
		}
		return nil
	})

	e.rejected(version, "WebApp", name, `{"spec":{"replicas":"many"}}`, "spec.replicas in body must be of type integer")
	e.rejected(version, "WebApp", name, `{"spec":{"replica":1}}`, `unknown field "spec.replica"`)
	e.apply("{apiVersion: " + version + ", kind: WebApp, metadata: {name: hello, namespace: default}, spec: {image: a}}")
	e.wait(version, "WebApp", "default/hello", is("Ready", "False", "PermissionMissing",
		"ServiceAccount default/webapps: the platform is not permitted to read this ServiceAccount; make sure that it "+
			"exists, and bind the platform's ServiceAccount to a Role in namespace default with verbs [get, impersonate], "+
			"resources [serviceaccounts], resourceNames [webapps]"))
	e.delete(version, "WebApp", "default/hello")
	e.waitGone(version, "WebApp", "default/hello")
}

func (e *examples) checkTenant() {
	const version = "tenancy.example.com/v1"
	e.wait(version, "Tenant", "garden", all(is("Ready", "True", "all 4 resources are ready, with 8 objects"),
		has(int64(2), "status", "count"),
		hasList([]string{"tenant-garden-dev", "tenant-garden-prod"}, "status", "namespaces")))
	children := func(namespace string) {
		e.wait("v1", "Namespace", namespace, has("garden", "metadata", "labels", "tenancy.example.com/tenant"))
		e.wait("v1", "ResourceQuota", namespace+"/tenant", has("8Gi", "spec", "hard", "requests.memory"))
		e.wait("rbac.authorization.k8s.io/v1", "RoleBinding", namespace+"/tenant-editors", has("edit", "roleRef", "name"))
		e.wait("networking.k8s.io/v1", "NetworkPolicy", namespace+"/tenant", exists)
	}
	children("tenant-garden-dev")
	children("tenant-garden-prod")
	e.change(version, "Tenant", "garden", `{"spec":{"namespaces":["prod","test"]}}`)
	e.waitGone("v1", "Namespace", "tenant-garden-dev")
	e.wait(version, "Tenant", "garden", all(is("Ready", "True"),
		hasList([]string{"tenant-garden-prod", "tenant-garden-test"}, "status", "namespaces")))
	children("tenant-garden-test")
	e.rejected(version, "Tenant", "garden", `{"spec":{"namespaces":["a","a"]}}`, "Duplicate value")

	e.addNamespace("tenant-yard-dev")
	e.apply("{apiVersion: " + version + ", kind: Tenant, metadata: {name: yard}, spec: {group: a, namespaces: [dev]}}")
	e.wait(version, "Tenant", "yard", is("Ready", "False", "Conflict", "tenant-yard-dev"))
	e.delete(version, "Tenant", "yard")
	e.waitGone(version, "Tenant", "yard")
	e.wait("v1", "Namespace", "tenant-yard-dev", has("Active", "status", "phase"))
}

func (e *examples) checkDatabase() {
	const version, name = "data.example.com/v1", "example-data/orders"
	e.wait(version, "Database", name, all(has("orders.example-data.svc:5432", "status", "address"),
		is("Ready", "False", "Waiting", "backup: waiting for server")))
	e.absent(version, "Backup", name)
	e.setReplicas("StatefulSet", name, 1)
	e.wait(version, "Backup", name, all(is("Ready", "True"), has("orders-backup", "status", "volume")))
	e.wait(version, "Database", name, is("Ready", "True", "all 3 resources are ready"))
	const success = "2026-01-02T03:00:00Z"
	e.setStatus("batch/v1", "CronJob", name+"-backup", `{"lastSuccessfulTime":"`+success+`"}`)
	e.wait(version, "Database", name, has(success, "status", "lastBackup"))

	volume := e.wait("v1", "PersistentVolumeClaim", name+"-backup", exists)
	e.change(version, "Database", name, `{"spec":{"backup":null}}`)
	e.waitGone(version, "Backup", name)
	e.waitGone("batch/v1", "CronJob", name+"-backup")
	e.change(version, "Database", name, `{"spec":{"backup":{"schedule":"0 4 * * *"}}}`)
	e.wait("batch/v1", "CronJob", name+"-backup", has("0 4 * * *", "spec", "schedule"))
	e.wait(version, "Database", name, is("Ready", "True"))
	e.wait("v1", "PersistentVolumeClaim", name+"-backup", has(string(volume.GetUID()), "metadata", "uid"))
	e.rejected(version, "Database", name, `{"spec":{"storage":"2Gi"}}`, "storage cannot be changed")
	e.rejected(version, "Database", name, `{"spec":{"version":"15"}}`, `supported values: "16", "17"`)
}

func (e *examples) checkFromKro() {
	const version, name = "features.example.com/v1alpha1", "example-features/flowers"
	e.wait(version, "Shop", name, is("Ready", "False", "Waiting", "service: waiting for deployment",
		`waiting for readyWhen "deployment.status.availableReplicas > 0"`))
	e.setReplicas("Deployment", name, 2)
	e.wait(version, "Shop", name, all(is("Ready", "True", "all 5 resources are ready, with 5 objects"),
		has(int64(2), "status", "available")))
	e.wait("networking.k8s.io/v1", "Ingress", name, exists)
	e.wait("v1", "ConfigMap", name+"-tulips", has("tulips", "data", "name"))
}

func (e *examples) checkCollection() {
	const version, name = "features.example.com/v1", "example-features/chess"
	e.wait(version, "Grid", name, all(has(int64(4), "status", "cells"),
		is("Ready", "False", "cells: 4 of 4 are not ready", "index: waiting for cells")))
	for _, cell := range []string{"-a-1", "-a-2", "-b-1", "-b-2"} {
		e.change("v1", "ConfigMap", name+cell, `{"data":{"confirmed":"yes"}}`)
	}
	e.wait("v1", "ConfigMap", name+"-index", has("a/1 a/2 b/1 b/2", "data", "cells"))
	e.wait("v1", "ConfigMap", name+"-note-opening", has("pawn to e4", "data", "text"))
	e.wait("v1", "ConfigMap", name+"-label-color", has("white", "data", "value"))
	e.absent("v1", "ConfigMap", name+"-note-secret")
	e.wait(version, "Grid", name, is("Ready", "True"))
	first := e.wait("v1", "ConfigMap", name+"-a-1", exists)
	e.change(version, "Grid", name, `{"spec":{"rows":["b","a"],"columns":["1"]}}`)
	e.waitGone("v1", "ConfigMap", name+"-a-2")
	e.waitGone("v1", "ConfigMap", name+"-b-2")
	e.wait("v1", "ConfigMap", name+"-index", has("b/1 a/1", "data", "cells"))
	e.wait("v1", "ConfigMap", name+"-a-1", has(string(first.GetUID()), "metadata", "uid"))
}

func (e *examples) checkReference() {
	const version, name = "features.example.com/v1", "example-features/weekly"
	e.wait(version, "Report", name, all(is("Ready", "True"), hasList([]string{"basil", "rose"}, "status", "members")))
	e.wait("v1", "ConfigMap", name+"-page", all(has("The garden", "data", "title"), has("no footer", "data", "footer"),
		has("basil, rose", "data", "members")))
	e.wait("v1", "ConfigMap", name+"-rose", has("Hello Rose", "data", "text"))
	e.wait("v1", "ConfigMap", name+"-draft", exists)
	e.change("v1", "ConfigMap", "example-features/gardeners-settings", `{"data":{"draft":"no","footer":"Page 1"}}`)
	e.waitGone("v1", "ConfigMap", name+"-draft")
	e.wait("v1", "ConfigMap", name+"-page", has("Page 1", "data", "footer"))
	e.delete("v1", "ConfigMap", "example-features/basil")
	e.waitGone("v1", "ConfigMap", name+"-basil")
	e.wait(version, "Report", name, hasList([]string{"rose"}, "status", "members"))
	e.delete("v1", "ConfigMap", "example-features/gardeners-settings")
	e.wait(version, "Report", name, is("Ready", "False", "page: waiting for settings"))
	e.wait("v1", "ConfigMap", name+"-page", has("Page 1", "data", "footer"))
}

func (e *examples) checkStatus() {
	const version, name = "features.example.com/v1", "example-features/rain"
	e.wait(version, "Gauge", name, all(is("Ready", "True"), is("High", "Unknown", "ValueMissing"),
		has("none", "status", "value"), has(nil, "status", "unit"),
		has("rain-reading", "status", "source", "name")))
	e.change("v1", "ConfigMap", name+"-reading", `{"data":{"value":"12","unit":"mm"}}`)
	e.wait(version, "Gauge", name, all(is("High", "True", "AboveLimit", "12 of 10"), has("12", "status", "value"),
		has("mm", "status", "unit")))
	e.change(version, "Gauge", name, `{"spec":{"limit":20}}`)
	e.wait(version, "Gauge", name, is("High", "False", "BelowLimit", "12 of 20"))
}

func (e *examples) checkFunctions() {
	const version, name = "features.example.com/v1", "example-features/sample"
	e.wait(version, "Sample", name, is("Ready", "True"))
	values := e.wait("v1", "ConfigMap", name, exists)
	got, _, err := unstructured.NestedStringMap(values.Object, "data")
	if err != nil {
		e.Fatal(err)
	}
	for key, want := range map[string]string{
		"marshaled": `{"tags":["large","big"]}`, "unmarshaled": "8080", "encoded": "eyJwb3J0cyI6IFs4MDgwXX0=",
		"deep": `{"a":{"x":1,"y":2}}`, "tags": "first last", "reversed": "elpmas", "sorted": "big large",
		"joined": "a1 b2", "quantity": "true", "host": "example.com", "found": "mpl",
		"script": `echo "${HOME}"`, "port": "30513",
		"hash": "5481625c28f57f7b8ed8e407d497911756317bfdaf2d01676980cda22062a904",
	} {
		if got[key] != want {
			e.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
	if _, set := got["comment"]; set || got["optional"] != "" || len(got["suffix"]) != 8 {
		e.Errorf("got data %q", got)
	}
	if labels := values.GetLabels(); labels["team"] != "gardeners" || labels["tier"] != "web" {
		e.Errorf("got labels %q", labels)
	}
	e.change(version, "Sample", name, `{"spec":{"comment":"fresh"}}`)
	e.wait("v1", "ConfigMap", name, all(has("fresh", "data", "comment"), has("fresh", "data", "optional")))
}

func (e *examples) checkSchema() {
	const version, name = "features.example.com/v1", "example-features/lamp"
	e.wait(version, "Order", name, all(is("Ready", "True"), has("small", "spec", "size"),
		has("Bonn", "spec", "home", "city")))
	e.wait("v1", "ConfigMap", name+"-receipt", all(has("1 small", "data", "order"), has("Bonn", "data", "city"),
		has(`{"note":{"anything":[1,"two"]}}`, "data", "extra")))
	e.rejected(version, "Order", name, `{"spec":{"customer":"a@b"}}`, "customer cannot be changed")
	e.rejected(version, "Order", name, `{"spec":{"size":"large","amount":6}}`, "at most 5 large items can be ordered")
	e.rejected(version, "Order", name, `{"spec":{"tags":["a","a"]}}`, "Duplicate value")
}

func (e *examples) checkOrder() {
	const version, name = "features.example.com/v1", "example-features/links"
	e.wait(version, "Chain", name, is("Ready", "False", "last: waiting for middle", "comment: waiting for middle"))
	e.absent("v1", "ConfigMap", name+"-last")
	e.change("v1", "ConfigMap", name+"-middle", `{"data":{"approved":"rose"}}`)
	e.wait("v1", "ConfigMap", name+"-last", has("links-middle", "data", "previous"))
	e.wait(version, "Chain", name, is("Ready", "True", "excluded by includeWhen: comment"))
	e.change("v1", "ConfigMap", name+"-middle", `{"data":{"comment":"good"}}`)
	e.wait("v1", "ConfigMap", name+"-comment", exists)
	e.change("v1", "ConfigMap", name+"-middle", `{"data":{"comment":null}}`)
	e.waitGone("v1", "ConfigMap", name+"-comment")
}

func (e *examples) checkRetain() {
	const version, name = "features.example.com/v1", "example-features/diary"
	e.wait(version, "Notebook", name, is("Ready", "True"))
	pages := e.wait("v1", "ConfigMap", name+"-pages", all(has("It rained.", "data", "monday"),
		has("My diary", "data", "title")))
	if owners := pages.GetOwnerReferences(); len(owners) > 0 {
		e.Errorf("got owners %v of the retained child", owners)
	}
}

// checkKept scales the Deployment, and changes the image afterwards. The replicas and the generated values stay.
func (e *examples) checkKept() {
	const version, name = "features.example.com/v1", "example-features/corner"
	e.wait(version, "Store", name, is("Ready", "True"))
	generated := func(secret *unstructured.Unstructured) string {
		data, _, _ := unstructured.NestedStringMap(secret.Object, "data")
		return data["password"] + " " + data["token"]
	}
	before := generated(e.wait("v1", "Secret", name+"-credentials", has("YWRtaW4=", "data", "user")))
	if len(before) < 40 {
		e.Errorf("got the generated values %q", before)
	}
	e.wait("apps/v1", "Deployment", name, has(int64(2), "spec", "replicas"))
	e.change("apps/v1", "Deployment", name, `{"spec":{"replicas":5}}`)
	e.change(version, "Store", name, `{"spec":{"image":"registry.example.com/store:2"}}`)
	e.wait("apps/v1", "Deployment", name, func(server *unstructured.Unstructured) error {
		containers, _, _ := unstructured.NestedSlice(server.Object, "spec", "template", "spec", "containers")
		return has("registry.example.com/store:2", "image")(&unstructured.Unstructured{
			Object: containers[0].(map[string]any),
		})
	})
	e.wait("apps/v1", "Deployment", name, has(int64(5), "spec", "replicas"))
	e.wait(version, "Store", name, is("Ready", "True"))
	if after := generated(e.wait("v1", "Secret", name+"-credentials", exists)); after != before {
		e.Error("the generated values have changed")
	}
}

func (e *examples) checkPaused() {
	const version, name = "features.example.com/v1", "example-features/desk"
	e.wait(version, "Lamp", name, is("Paused", "True"))
	e.absent("v1", "ConfigMap", name+"-bulb")
	e.change(version, "Lamp", name, `{"metadata":{"annotations":{"platform.example.com/paused":null}}}`)
	e.wait("v1", "ConfigMap", name+"-bulb", has("3", "data", "brightness"))
	e.wait(version, "Lamp", name, is("Ready", "True"))
}

func (e *examples) checkExistingType() {
	const version, name = "features.example.com/v1", "example-features/books"
	e.wait(version, "Parcel", name, all(is("Ready", "True"), has("books-label", "status", "label")))
	e.wait("v1", "ConfigMap", name+"-label", has("3 kg", "data", "weight"))
}
