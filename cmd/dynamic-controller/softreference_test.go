package main

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// stores has an optional database that READ reads, and a child that refers to the reader.
const stores = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: stores.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: Store
    schema:
      type: object
      properties: {spec: {type: object, properties: {database: {type: boolean, default: false}}}}
    status: {host: "${database.?data.?host.orValue('no database')}"}
  resources:
    - id: database
      includeWhen: [self.spec.database]
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}-db"}, data: {host: db}}
    - id: app
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-app"}
        data: {host: "${READ}"}
    - id: scaler
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-scaler"}
        data: {app: "${app.metadata.name}"}
`

// hasHost returns a check for the host in an app.
func hasHost(want string) func(*unstructured.Unstructured) error {
	return has(want, "data", "host")
}

// A resource that reads an excluded resource by ? stays, and changes when the other resource is included or excluded.
func TestSoftReference_KeepsTheReferrer(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(strings.Replace(stores, "READ", "database.?data.?host.orValue('none')", 1))
	a.apply("{apiVersion: GROUP/v1, kind: Store, metadata: {name: s}, spec: {database: false}}")
	a.wait("GROUP/v1", "Store", "s", all(
		is("Ready", "True", "2 of 3 resources are ready; excluded by includeWhen: database"),
		has("no database", "status", "host")))
	a.wait("v1", "ConfigMap", "s-app", hasHost("none"))
	app, scaler := a.uid("s-app"), a.uid("s-scaler")

	a.apply("{apiVersion: GROUP/v1, kind: Store, metadata: {name: s}, spec: {database: true}}")
	a.wait("GROUP/v1", "Store", "s", all(is("Ready", "True", "all 3 resources"), has("db", "status", "host")))
	a.wait("v1", "ConfigMap", "s-app", hasHost("db"))

	a.apply("{apiVersion: GROUP/v1, kind: Store, metadata: {name: s}, spec: {database: false}}")
	a.waitGone("v1", "ConfigMap", "s-db")
	a.wait("GROUP/v1", "Store", "s", all(is("Ready", "True", "2 of 3 resources are ready"),
		has("no database", "status", "host")))
	a.wait("v1", "ConfigMap", "s-app", hasHost("none"))
	if a.uid("s-app") != app || a.uid("s-scaler") != scaler {
		t.Error("children that read the database by ? were created again")
	}
}

// A resource that needs an excluded resource is excluded with it. The status names both.
func TestHardReference_NamesWhatExcludesTheReferrer(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	text := strings.Replace(stores, "READ", "database.data.host", 1)
	a.apply(text)
	a.apply("{apiVersion: GROUP/v1, kind: Store, metadata: {name: s}, spec: {database: false}}")
	a.wait("GROUP/v1", "Store", "s", is("Ready", "True", "0 of 3 resources are ready; excluded by includeWhen: database; "+
		"excluded because they refer to excluded resources: app refers to database, scaler refers to app"))
	for _, name := range []string{"s-app", "s-scaler"} {
		if _, err := a.get("v1", "ConfigMap", name); !apierrors.IsNotFound(err) {
			t.Errorf("%s: got error %v, want NotFound", name, err)
		}
	}
	eventually(t, func() error {
		if out, _ := a.ask("why", "store.GROUP/s"); !strings.Contains(out, "app refers to database, scaler refers to app") {
			return errors.New(out)
		}
		return nil
	})
}

// uid returns the UID of a ConfigMap.
func (a *api) uid(name string) string {
	a.Helper()
	object, err := a.get("v1", "ConfigMap", name)
	if err != nil {
		a.Fatal(err)
	}
	return string(object.GetUID())
}
