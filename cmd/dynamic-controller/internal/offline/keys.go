package offline

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
	k8syaml "sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// kubectl reads YAML 1.1, in which unquoted words such as y, no and on are booleans, and 010 is the number 8. A key is
// converted to the text of its value, so that the variable y is named true without an error.
const (
	keyReadAs   = "kubectl reads the key %s as %s; write it in quotes, or use a different name"
	valueReadAs = "; kubectl reads %s as %s: write it in quotes if it is a string"
)

// keyProblems returns the fields that occur more than once in the same object, and those whose names change when
// kubectl reads them.
func keyProblems(node *yaml.Node, path string) (problems blueprint.Problems) {
	switch node.Kind {
	case yaml.SequenceNode:
		for i, item := range node.Content {
			problems = append(problems, keyProblems(item, fmt.Sprintf("%s[%d]", path, i))...)
		}
	case yaml.MappingNode:
		seen := map[string]bool{}
		for i := 0; i+1 < len(node.Content); i += 2 {
			key := node.Content[i].Value
			at := strings.TrimPrefix(path+"."+key, ".")
			if seen[key] {
				problems = append(problems, blueprint.Problem{Path: at, Reason: "duplicate field; remove one of them"})
			}
			seen[key] = true
			if read, differs := readAs(node.Content[i]); differs {
				problems = append(problems, blueprint.Problem{Path: at, Reason: fmt.Sprintf(keyReadAs, key, read)})
			}
			problems = append(problems, keyProblems(node.Content[i+1], at)...)
		}
	}
	return problems
}

// readAs returns the text as which kubectl reads an unquoted key or value, and whether it differs from the text in the
// file.
func readAs(node *yaml.Node) (text string, differs bool) {
	if node.Kind != yaml.ScalarNode || node.Style != 0 || !isReinterpreted(node) {
		return "", false
	}
	data, err := k8syaml.YAMLToJSON([]byte(node.Value + ": 0"))
	var object map[string]any
	if err != nil || json.Unmarshal(data, &object) != nil || len(object) != 1 {
		return "", false // for example ~, which cannot be a key
	}
	for text = range object {
		differs = text != node.Value
	}
	return text, differs
}

// isReinterpreted reports whether an unquoted text can be something else than a string.
func isReinterpreted(node *yaml.Node) bool {
	switch strings.ToLower(node.Value) {
	case "y", "n", "yes", "no", "on", "off":
		return true
	}
	tag := node.ShortTag()
	return tag == "!!bool" || tag == "!!int" || tag == "!!float"
}
