package offline

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// kubectl reads YAML 1.1, in which some unquoted words are booleans and some numbers are octal. The API server then
// gets names that are not in the file.
func TestValidate_ReportsNamesThatKubectlChanges(t *testing.T) {
	const text = `apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: shops.shop.example.com}
spec:
  type:
    group: shop.example.com
    version: v1
    kind: Shop
    schema: {properties: {spec: {type: object, properties: {
      x: {type: integer},
      KEY: {type: array, items: {type: string}}
    }}}}
  resources:
    - id: ID
      forEach:
        - VARIABLE: ${self.spec.list}
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${item}"}, data: {DATA: x}}
`
	for name, test := range map[string]struct{ placeholder, value, want string }{
		"a variable named y": {"VARIABLE", "y", "16: blueprint/shops.shop.example.com: spec.resources[0].forEach[0].y: " +
			"kubectl reads the key y as true; write it in quotes, or use a different name"},
		"the variable as kubectl reads it": {"VARIABLE", "y", "16: blueprint/shops.shop.example.com: " +
			`spec.resources[0].forEach[0].true: "true" is reserved; use a different name. ` +
			"YAML reads y, yes and on as true unless they are in quotes"},
		"a variable named No": {"VARIABLE", "No", "forEach[0].No: kubectl reads the key No as false; write it in quotes"},
		"an id named on": {"ID", "on", "spec.resources[0].id in body must be of type string: \"boolean\"; kubectl reads on " +
			"as true: write it in quotes if it is a string"},
		"a property named y":                  {"KEY", "y", "properties.y: kubectl reads the key y as true; write it"},
		"a property named off":                {"KEY", "off", "properties.off: kubectl reads the key off as false; write it"},
		"an octal key":                        {"DATA", "010", "data.010: kubectl reads the key 010 as 8; write it"},
		"a key that is a boolean in capitals": {"DATA", "TRUE", "data.TRUE: kubectl reads the key TRUE as true; write it"},
	} {
		replace := map[string]string{"KEY": "list", "ID": "page", "VARIABLE": "item", "DATA": "text"}
		replace[test.placeholder] = test.value
		file := text
		for from, to := range replace {
			file = strings.ReplaceAll(file, from, to)
		}
		var out bytes.Buffer
		err := Validate(t.Context(), &out, io.Discard, []string{"-"}, Options{Stdin: strings.NewReader(file)})
		if err != ErrProblems || !strings.Contains(out.String(), test.want) {
			t.Errorf("%s: got %v, %s, want %s", name, err, out.String(), test.want)
		}
	}
}

func TestValidate_AcceptsNamesThatKubectlDoesNotChange(t *testing.T) {
	const text = shopBlueprint + `---
apiVersion: v1
kind: ConfigMap
data: {"y": a, 'no': b, yesterday: c, 8080: d, nope: e, on_: f, true: g, "010": h}
enabled: yes
`
	var out bytes.Buffer
	err := Validate(t.Context(), &out, io.Discard, []string{"-"}, Options{Stdin: strings.NewReader(text)})
	if err != nil {
		t.Errorf("got %v, %s", err, out.String())
	}
}
