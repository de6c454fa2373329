package keptfields

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"*":                                     "",
		"spec.replicas":                         ".spec.replicas",
		`data["tls.key"]`:                       ".data.tls.key",
		`metadata.annotations["a.example/b"]`:   ".metadata.annotations.a.example/b",
		"spec.containers[name=web].image":       `.spec.containers[name="web"].image`,
		"spec.ports[port=80,protocol=TCP].name": `.spec.ports[port=80,protocol="TCP"].name`,
	} {
		path, err := Parse(schema.GroupKind{Kind: "ConfigMap"}, text)
		if err != nil || path.String() != want {
			t.Errorf("%s: got %s, %v; want %s", text, path, err, want)
		}
	}
}

func TestParse_RefusesOtherPaths(t *testing.T) {
	deployment := schema.GroupKind{Group: "apps", Kind: "Deployment"}
	for name, test := range map[string]struct {
		kind       schema.GroupKind
		text, want string
	}{
		"an empty path":              {deployment, "", "must consist of field names"},
		"an empty name":              {deployment, "spec..replicas", "must consist of field names"},
		"a key without quotes":       {deployment, "data[tls.key]", "must be selected by its keys"},
		"a key that is not closed":   {deployment, `data["a`, `must have the form ["key"]`},
		"an item of a list":          {deployment, "spec.containers[name=web]", "must end with a field"},
		"the status":                 {deployment, "status.replicas", "status cannot be kept"},
		"all labels":                 {deployment, "metadata.labels", "only single labels and annotations"},
		"the name":                   {deployment, "metadata.name", "only single labels and annotations"},
		"the stringData of a Secret": {schema.GroupKind{Kind: "Secret"}, "stringData.a", "use data"},
		"a role": {
			schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "Role"}, "*", "fields of a Role must not be kept",
		},
		"a network policy": {
			schema.GroupKind{Group: "networking.k8s.io", Kind: "NetworkPolicy"}, "spec.ingress", "must not be kept",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if path, err := Parse(test.kind, test.text); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %s, %v; want %s", path, err, test.want)
			}
		})
	}
}
