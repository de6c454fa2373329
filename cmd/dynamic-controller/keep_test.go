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
	secret := a.read(`{apiVersion: v1, kind: Secret, metadata: {name: a}}`)
	names := []string{"a", "b", "c", "d", "e", "f"}
	stored := func(name string) map[string]any {
		t.Helper()
		now, err := a.client(secret).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return now.Object["data"].(map[string]any)
	}
	data := func(name string) string { return fmt.Sprint(stored(name)) }
	rollout := func(image string) {
		t.Helper()
		for _, name := range names {
			a.apply(`{apiVersion: GROUP/v1, kind: Database, metadata: {name: ` + name + `}, spec: {image: ` + image + `}}`)
		}
		for _, name := range names {
			a.wait("v1", "Secret", name, has(image, "metadata", "labels", "image"))
			a.wait("apps/v1", "Deployment", name, func(server *unstructured.Unstructured) error {
				if !strings.Contains(fmt.Sprint(server.Object["spec"]), "image:"+image+" ") {
					return fmt.Errorf("the spec is %v", server.Object["spec"])
				}
				return nil
			})
		}
	}
	rollout("one")
	first := map[string]string{}
	for _, name := range names {
		first[name] = data(name)
	}
	check := func(when string) {
		t.Helper()
		for _, name := range names {
			if data(name) != first[name] {
				t.Errorf("%s: the generated values of %s have changed", when, name)
			}
		}
	}
	for key, length := range map[string]int{"user": 5, "password": 32, "token": 64} {
		if value, err := base64.StdEncoding.DecodeString(fmt.Sprint(stored("a")[key])); err != nil || len(value) != length {
			t.Errorf("%s has %d bytes: %v", key, len(value), err)
		}
	}
	key, _ := base64.StdEncoding.DecodeString(fmt.Sprint(stored("a")["tls.key"]))
	if !strings.Contains(string(key), "PRIVATE KEY") {
		t.Error("tls.key is not a private key")
	}
	server := a.read(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}`)
	if _, err := a.client(server).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"replicas":16}}`),
		metav1.PatchOptions{FieldManager: "autoscaler"}, "scale"); err != nil {
		t.Fatal(err)
	}
	rollout("two")
	check("after the instances have changed")
	a.apply(strings.ReplaceAll(databases, "user: admin", "user: admin, host: db"))
	for _, name := range names {
		a.wait("v1", "Secret", name, has(base64.StdEncoding.EncodeToString([]byte("db")), "data", "host"))
	}
	for _, name := range names {
		first[name] = strings.ReplaceAll(first[name], "map[", "map[host:ZGI= ")
	}
	check("after the Blueprint has changed")
	running.stop(syscall.SIGTERM)
	startServing(t, kubeconfig)
	rollout("three")
	check("after another start")
	a.wait("apps/v1", "Deployment", "a", func(server *unstructured.Unstructured) error {
		if replicas, _, _ := unstructured.NestedInt64(server.Object, "spec", "replicas"); replicas != 16 {
			t.Fatalf("the Deployment has %d replicas", replicas)
		}
		return nil
	})
}
