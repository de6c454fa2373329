package offline

import (
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestLineOf(t *testing.T) {
	const text = `metadata:
  labels:
    app.kubernetes.io/name: a
    app: b
spec: &spec
  list:
    - name: one
    - name: two
      deep: {value: 1}
copy: *spec
`
	var root yaml.Node
	if err := yaml.Unmarshal([]byte(text), &root); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"": 1, "metadata": 1, "metadata.labels": 2,
		"metadata.labels.app": 4, "metadata.labels[app.kubernetes.io/name]": 3,
		`metadata.labels["app.kubernetes.io/name"]`: 3, "metadata.labels.app.kubernetes.io/name": 3,
		"spec.list[1].deep.value": 9, "spec.list[1].name": 8, "spec.list[7].name": 6, "spec.missing": 5,
		"copy.list[0].name": 7, "unknown.field": 1,
	} {
		if got := lineOf(root.Content[0], path); got != want {
			t.Errorf("%q: got line %d, want %d", path, got, want)
		}
	}
}
