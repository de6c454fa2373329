package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The steps of the quick start in README.md must work and print the output that README.md shows.
func TestReadme_DefinesATypeAndExplainsAMistake(t *testing.T) {
	data, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := string(data)
	manifests := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(readme, -1)
	_, shown, found := strings.Cut(readme, "    $ bin/dynamic-controller why blueprint/websites\n")
	if len(manifests) != 2 || !found {
		t.Fatalf("README.md has %d manifests, and the output of why: %t", len(manifests), found)
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
