package main

import (
	"encoding/base64"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

const databases = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: databases.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: Database
    schema: {properties: {spec: {type: object, properties: {image: {type: string}}}}}
  resources:
  - id: credentials
    template:
      apiVersion: v1
      kind: Secret
      metadata: {name: "${self.metadata.name}", labels: {image: "${self.spec.image}"}}
      stringData: {user: admin}
    generate: [{key: password}, {key: token, format: Hex, length: 64}, {key: tls.key, format: PrivateKey}]
  - id: server
    template:
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: "${self.metadata.name}"}
      spec:
        replicas: 3
        selector: {matchLabels: {app: "${self.metadata.name}"}}
        template:
          metadata: {labels: {app: "${self.metadata.name}"}}
          spec: {containers: [{name: db, image: "${self.spec.image}"}]}
    readyWhen: ["true"]
    keepExisting: [{path: spec.replicas, reason: scaled by the autoscaler}]
`

// databaseInstances are instances of the Blueprint databases, with the generated values that are expected in their
// Secrets.
type databaseInstances struct {
	*api
	names []string
	first map[string]string // the data of each Secret
}

// stored returns the data of the Secret of an instance.
func (d *databaseInstances) stored(name string) map[string]any {
	d.Helper()
	secret := d.read(`{apiVersion: v1, kind: Secret, metadata: {name: a}}`)
	now, err := d.client(secret).Get(d.Context(), name, metav1.GetOptions{})
	if err != nil {
		d.Fatal(err)
	}
	return now.Object["data"].(map[string]any)
}

// decoded returns a value of the Secret of an instance.
func (d *databaseInstances) decoded(name, key string) ([]byte, error) {
	d.Helper()
	return base64.StdEncoding.DecodeString(fmt.Sprint(d.stored(name)[key]))
}

// rollout applies all instances with the image and waits until their children have it.
func (d *databaseInstances) rollout(image string) {
	d.Helper()
	for _, name := range d.names {
		d.apply(`{apiVersion: GROUP/v1, kind: Database, metadata: {name: ` + name + `}, spec: {image: ` + image + `}}`)
	}
	for _, name := range d.names {
		d.wait("v1", "Secret", name, has(image, "metadata", "labels", "image"))
		d.wait("apps/v1", "Deployment", name, runsImage(image))
	}
}

// runsImage returns a check that the container of a Deployment has the image.
func runsImage(image string) func(*unstructured.Unstructured) error {
	return func(server *unstructured.Unstructured) error {
		if !strings.Contains(fmt.Sprint(server.Object["spec"]), "image:"+image+" ") {
			return fmt.Errorf("the spec is %v", server.Object["spec"])
		}
		return nil
	}
}

// remember stores the data of all Secrets for checkUnchanged.
func (d *databaseInstances) remember() {
	d.Helper()
	for _, name := range d.names {
		d.first[name] = fmt.Sprint(d.stored(name))
	}
}

// addHost adds a value to the Secret in the Blueprint and waits until all Secrets have the value.
func (d *databaseInstances) addHost() {
	d.Helper()
	d.apply(strings.ReplaceAll(databases, "user: admin", "user: admin, host: db"))
	for _, name := range d.names {
		d.wait("v1", "Secret", name, has(base64.StdEncoding.EncodeToString([]byte("db")), "data", "host"))
	}
	for _, name := range d.names {
		d.first[name] = strings.ReplaceAll(d.first[name], "map[", "map[host:ZGI= ")
	}
}

// checkUnchanged checks that all Secrets have the generated values that they had at first.
func (d *databaseInstances) checkUnchanged(when string) {
	d.Helper()
	for _, name := range d.names {
		if fmt.Sprint(d.stored(name)) != d.first[name] {
			d.Errorf("%s: the generated values of %s have changed", when, name)
		}
	}
}

// checkFormats checks the lengths and formats of the values in the Secret of an instance.
func (d *databaseInstances) checkFormats(name string) {
	d.Helper()
	for key, length := range map[string]int{"user": 5, "password": 32, "token": 64} {
		if value, err := d.decoded(name, key); err != nil || len(value) != length {
			d.Errorf("%s has %d bytes: %v", key, len(value), err)
		}
	}
	key, _ := d.decoded(name, "tls.key")
	if !strings.Contains(string(key), "PRIVATE KEY") {
		d.Error("tls.key is not a private key")
	}
}

// Generated values are stored once, although the watches are behind, the platform starts again, and the instance and
// the Blueprint change. Fields that others may set are not corrected.
func TestKeepExisting_GeneratedValuesAndScaledReplicas(t *testing.T) {
	a := newAPI(t)
	kubeconfig, _ := a.proxied(apiproxy.DelayWatches(func(watch apiproxy.Call) time.Duration {
		if watch.Resource == "secrets" || watch.Resource == "deployments" {
			return 500 * time.Millisecond
		}
		return 0
	}))
	running := startServing(t, kubeconfig)
	a.apply(databases)
	d := &databaseInstances{api: a, names: []string{"a", "b", "c", "d", "e", "f"}, first: map[string]string{}}
	d.rollout("one")
	d.remember()
	d.checkFormats("a")
	server := a.read(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}`)
	if _, err := a.client(server).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"replicas":16}}`),
		metav1.PatchOptions{FieldManager: "autoscaler"}, "scale"); err != nil {
		t.Fatal(err)
	}
	d.rollout("two")
	d.checkUnchanged("after the instances have changed")
	d.addHost()
	d.checkUnchanged("after the Blueprint has changed")
	running.stop(syscall.SIGTERM)
	startServing(t, kubeconfig)
	d.rollout("three")
	d.checkUnchanged("after another start")
	a.wait("apps/v1", "Deployment", "a", func(server *unstructured.Unstructured) error {
		if replicas, _, _ := unstructured.NestedInt64(server.Object, "spec", "replicas"); replicas != 16 {
			t.Fatalf("the Deployment has %d replicas", replicas)
		}
		return nil
	})
}
