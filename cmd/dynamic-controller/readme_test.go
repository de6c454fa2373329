package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// readDocument returns the text of a file of the repository.
func readDocument(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The program in README.md must be the one that the tests of the examples run.
func TestReadme_ShowsTheHelloExample(t *testing.T) {
	programs := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(readDocument(t, "README.md"), -1)
	if len(programs) != 1 || programs[0][1] != readDocument(t, "examples/hello/main.go") {
		t.Error("README.md must contain exactly one Go program, with the content of examples/hello/main.go")
	}
}

// The Blueprint and the instance in README.md must work, and the mistake in docs/blueprints.md must be explained with
// the output that the page shows.
func TestReadme_DefinesATypeAndExplainsAMistake(t *testing.T) {
	manifests := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(readDocument(t, "README.md"), -1)
	_, shown, found := strings.Cut(readDocument(t, "docs/blueprints.md"),
		"    $ bin/dynamic-controller why blueprint/websites\n")
	if len(manifests) != 2 || !found {
		t.Fatalf("README.md has %d manifests, and docs/blueprints.md has the output of why: %t", len(manifests), found)
	}
	shown, _, _ = strings.Cut(shown, "\n\n")
	shown = strings.TrimPrefix(strings.ReplaceAll(shown, "\n    ", "\n"), "    ")

	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	group := change{"shop.example.com", "GROUP"}
	blueprint, website := changed(manifests[0][1], group), changed(manifests[1][1], group)
	a.apply(blueprint)
	a.wait(blueprintVersion, "Blueprint", "websites", is("Serving", "True"))
	a.apply(changed(website, change{"namespace: default", "namespace: " + a.namespace}))
	a.wait("GROUP/v1", "Website", "hello", is("Ready", "True"))
	for _, kind := range []string{"Service", "ConfigMap"} {
		if _, err := a.get("v1", kind, "hello"); err != nil {
			t.Error(err)
		}
	}
	a.apply(changed(blueprint, change{"self.spec.text", "self.spec.txt"}))
	a.wait(blueprintVersion, "Blueprint", "websites", is("Accepted", "False"))
	if out, code := a.ask("why", "blueprint/websites"); code != 1 || !strings.HasPrefix(out, shown+"\n") {
		t.Errorf("got exit code %d and\n%s\nwant\n%s", code, out, shown)
	}
	a.wait("GROUP/v1", "Website", "hello", is("Ready", "True"))
}
