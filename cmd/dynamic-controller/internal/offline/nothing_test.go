package offline

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	shopBlueprint = `apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: shops.shop.example.com}
spec:
  type: {group: shop.example.com, version: v1, kind: Shop, schema: {properties: {spec: {type: object}}}}
  resources: []
`
	noBlueprint = "no Blueprint is in the files, so nothing was checked; pass Blueprints, and instances together with " +
		"their Blueprints"
	notAnObject = "must be an object with apiVersion and kind, which are strings"
)

// Text that contains nothing to check must not be reported as valid.
func TestValidate_ReportsTextWithoutAnythingToCheck(t *testing.T) {
	const instance = "apiVersion: shop.example.com/v1\nkind: Shop\nmetadata: {name: a}\n"
	const list = "apiVersion: v1\nkind: List\n"
	for name, test := range map[string]struct{ text, want string }{
		"empty":                               {"", "1: contains no objects"},
		"only comments":                       {"# comment\n---\n# another\n", "1: contains no objects"},
		"null":                                {"null", "1: contains no objects"},
		"empty documents":                     {"---\n---\n", "1: contains no objects"},
		"a list without items":                {list + "items: []", "1: contains no objects"},
		"text":                                {"hello world", "1: must be an object"},
		"a page of a web server":              {"<html></html>", "1: must be an object"},
		"a number":                            {"42", "1: must be an object"},
		"a JSON list":                         {`[{"apiVersion": "v1"}]`, "1: must be an object"},
		"an empty object":                     {"{}", "1: " + notAnObject},
		"values of another program":           {"replicas: 3\nimage: web\n", "1: " + notAnObject},
		"an object without kind":              {"apiVersion: v1", "1: " + notAnObject},
		"an object without apiVersion":        {"kind: Shop", "1: " + notAnObject},
		"an apiVersion that is a number":      {"\napiVersion: 1\nkind: Shop", "2: " + notAnObject},
		"an item of a list that is no object": {list + "items:\n- 3\n", "4: must be an object"},
		"an item of a list without kind":      {list + "items:\n- a: b\n", "4: " + notAnObject},
		"an object of another kind":           {"apiVersion: v1\nkind: ConfigMap\n", "1: " + noBlueprint},
		"an instance without its Blueprint":   {instance, "1: " + noBlueprint},
		"a Blueprint in another version": {strings.Replace(shopBlueprint, "v1alpha1", "v1", 1),
			"2: blueprint/shops.shop.example.com: kind: unknown kind Blueprint in platform.example.com/v1; use " +
				"kind: Blueprint and apiVersion: platform.example.com/v1alpha1"},
		"a Blueprint in lower case": {strings.Replace(shopBlueprint, "kind: Blueprint", "kind: blueprint", 1),
			"2: blueprint/shops.shop.example.com: kind: unknown kind blueprint in platform.example.com/v1alpha1; use " +
				"kind: Blueprint and apiVersion: platform.example.com/v1alpha1"},
		"an instance with a misspelled kind": {shopBlueprint + "---\n" + strings.Replace(instance, "Shop", "Shopp", 1),
			"9: shopp/a: kind: unknown kind Shopp in shop.example.com/v1; did you mean Shop?"},
		"an instance of another kind": {shopBlueprint + "---\n" + strings.Replace(instance, "Shop", "Car", 1),
			"9: car/a: kind: unknown kind Car in shop.example.com/v1; the Blueprints define Shop"},
		"a document after the end of a document": {shopBlueprint + "...\n--- {a: b}\n",
			"8: only the first document is read; separate documents with lines that consist of ---"},
		"two JSON objects on one line": {`{"apiVersion": "v1", "kind": "Pod"}{"kind": "Pod"}`,
			"1: only the first document is read; separate documents with lines that consist of ---"},
	} {
		var out, errOut bytes.Buffer
		err := Validate(t.Context(), &out, &errOut, []string{"-"}, Options{Stdin: strings.NewReader(test.text)})
		if err != ErrProblems || out.String() != "-:"+test.want+"\n" || errOut.Len() > 0 {
			t.Errorf("%s: got %v, %s%s, want %s", name, err, out.String(), errOut.String(), test.want)
		}
	}
}

// An empty file in a directory is ignored, as kubectl does. One that is named is reported.
func TestValidate_ReportsNamedFilesWithoutObjects(t *testing.T) {
	dir := t.TempDir()
	empty, full := filepath.Join(dir, "empty.yaml"), filepath.Join(dir, "full.yaml")
	for file, text := range map[string]string{empty: "# nothing\n", full: shopBlueprint} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for want, paths := range map[string][]string{
		"":                                  {dir},
		empty + ":1: contains no objects\n": {empty, full},
	} {
		var out bytes.Buffer
		err := Validate(t.Context(), &out, io.Discard, paths, Options{})
		if (err != nil) != (want != "") || out.String() != want {
			t.Errorf("%s: got %v, %s, want %s", paths, err, out.String(), want)
		}
	}
}
