package main

import (
	"bytes"
	"os"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
)

// A Greeting is printed when it is created, changed and deleted, and only then.
func TestGreet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := controllertest.NewServer(controllertest.Type{GVR: greetings, Kind: "Greeting"})
		engine := controllertest.NewController(t, server, dynamiccontroller.Config{})
		var out bytes.Buffer
		if err := engine.StartServingGVK(t.Context(), greetings, greet(engine, &out)); err != nil {
			t.Fatal(err)
		}
		controllertest.Run(t, engine.Run)
		expect := func(want string) {
			t.Helper()
			controllertest.WaitIdle(t, engine)
			if got := out.String(); got != want {
				t.Errorf("printed %q, want %q", got, want)
			}
			out.Reset()
		}

		first := server.Apply(manifest(t, "world.yaml"))
		expect("Hello, world! This is default/first\n")
		server.Apply(manifest(t, "world.yaml")) // no change
		expect("")
		server.Apply(manifest(t, "moon.yaml"))
		expect("Hello, moon! This is default/first\n")
		server.Delete(first)
		expect("Goodbye from default/first\n")
	})
}

func manifest(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(data, object); err != nil {
		t.Fatal(err)
	}
	return object
}
