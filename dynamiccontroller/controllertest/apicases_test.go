package controllertest_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/internal/apicases"
)

// The server answers as kube-apiserver did when the test in test/integration recorded its answers. That test runs both
// and shows how they differ.
func TestServer_AnswersAsRecorded(t *testing.T) {
	things := schema.GroupVersionResource{Group: "things.example.org", Version: "v1", Resource: "things"}
	server := apicases.Server{
		Client: controllertest.NewServer(
			controllertest.Type{GVR: things, Kind: "Thing"},
			controllertest.Type{GVR: apicases.ConfigMaps, Kind: "ConfigMap"},
			controllertest.Type{GVR: apicases.Roles, Kind: "Role"},
			controllertest.Type{GVR: apicases.Namespaces, Kind: "Namespace", ClusterScoped: true},
		),
		Things: things, Namespace: "cases",
	}
	recorded := apicases.Recorded()
	for _, c := range apicases.All() {
		answers, err := server.Answers(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		equal := apicases.Digest(answers) == recorded[c.Name]
		if _, documented := apicases.Differences[c.Name]; equal == documented {
			t.Errorf("%s: equal to the recorded answers: %t, documented difference: %t\n%s",
				c.Name, equal, documented, strings.Join(answers, "\n"))
		}
	}
}
