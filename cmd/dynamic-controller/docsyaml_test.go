package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// documentedBlueprint is a Blueprint into which the excerpts in docs/blueprints.md are inserted.
const documentedBlueprint = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: docs}
spec:
  type:
    group: docs.example.com
    version: v1
    kind: Document
    schema:
      type: object
      required: [spec]
      properties:
        spec:
          type: object
          required: [settings, team, replicas, members]
          properties:
            settings: {type: string}
            team: {type: string}
            replicas: {type: integer}
            members:
              type: array
              maxItems: 10
              items:
                type: object
                required: [name, mail]
                properties: {name: {type: string}, mail: {type: string}}
  resources:
    - id: service
      template:
        apiVersion: v1
        kind: Service
        metadata: {name: "${self.metadata.name}"}
        spec: {ports: [{port: 80}]}
    - &deployment
      id: web
      template:
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: "${self.metadata.name}"}
        spec:
          replicas: ${self.spec.replicas}
          selector: {matchLabels: {app: "${self.metadata.name}"}}
          template:
            metadata: {labels: {app: "${self.metadata.name}"}}
            spec: {containers: [{name: web, image: web}]}
    - <<: *deployment
      id: deployment
`

// The excerpts of Blueprints in docs/blueprints.md must be valid.
func TestDocs_ExcerptsOfBlueprintsAreValid(t *testing.T) {
	text, err := os.ReadFile("../../docs/blueprints.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, excerpt := range indentedBlocks(string(text)) {
		blueprint := withExcerpt(t, excerpt)
		if blueprint == nil {
			continue // a command or its output
		}
		checked++
		file := filepath.Join(t.TempDir(), "blueprint.yaml")
		if err := os.WriteFile(file, blueprint, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := execute(t, "validate", file); err != nil {
			t.Errorf("%v: %s\n%s", err, out, excerpt)
		}
	}
	if checked < 4 {
		t.Errorf("found only %d excerpts", checked)
	}
}

// indentedBlocks returns the indented code blocks of a document.
func indentedBlocks(text string) (blocks []string) {
	var block strings.Builder
	for line := range strings.Lines(text + "\nend\n") {
		if code, ok := strings.CutPrefix(line, "    "); ok {
			block.WriteString(code)
		} else if strings.TrimSpace(line) != "" && block.Len() > 0 {
			blocks = append(blocks, block.String())
			block.Reset()
		}
	}
	return blocks
}

// withExcerpt inserts resources, fields of the type, or fields of the Deployment into the Blueprint. It returns nil if
// the block is not an excerpt of a Blueprint.
func withExcerpt(t *testing.T, excerpt string) []byte {
	t.Helper()
	var blueprint map[string]any
	if err := yaml.Unmarshal([]byte(documentedBlueprint), &blueprint); err != nil {
		t.Fatal(err)
	}
	spec := blueprint["spec"].(map[string]any)
	resources := spec["resources"].([]any)
	var added []any
	var fields map[string]any
	switch {
	case strings.HasPrefix(excerpt, "- id: ") && yaml.Unmarshal([]byte(excerpt), &added) == nil:
		spec["resources"] = append(resources, added...)
	case strings.HasPrefix(excerpt, "type:\n") && yaml.Unmarshal([]byte(excerpt), &fields) == nil:
		for key, value := range fields["type"].(map[string]any) {
			spec["type"].(map[string]any)[key] = value
		}
	case strings.HasPrefix(excerpt, "readyWhen:\n") && yaml.Unmarshal([]byte(excerpt), &fields) == nil:
		resources[len(resources)-1].(map[string]any)["readyWhen"] = fields["readyWhen"]
	default:
		return nil
	}
	data, err := yaml.Marshal(blueprint)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
