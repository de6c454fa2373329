package offline

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// lineOf returns the line of the field at a path such as spec.resources[2].template. If the field does not exist, it
// returns the line of the closest existing parent.
func lineOf(node *yaml.Node, path string) int {
	line := node.Line
	for path != "" {
		next, at, rest := step(target(node), path)
		if next == nil {
			break
		}
		node, line, path = next, at, rest
	}
	return line
}

// nodeAt returns the value of the field at a path. It returns false if the field does not exist.
func nodeAt(node *yaml.Node, path string) (at *yaml.Node, exists bool) {
	at = node
	for path != "" && at != nil {
		at, _, path = step(target(at), path)
	}
	return at, at != nil
}

// step follows the first part of a path. It returns the next node, its line, and the rest of the path.
func step(node *yaml.Node, path string) (next *yaml.Node, line int, rest string) {
	switch node.Kind {
	case yaml.SequenceNode:
		for i, item := range node.Content {
			if after, is := cutPart(path, fmt.Sprintf("[%d]", i)); is {
				return item, item.Line, after
			}
		}
	case yaml.MappingNode:
		longest := 0 // keys can contain dots; the last duplicate wins
		for i := 0; i+1 < len(node.Content); i += 2 {
			key := node.Content[i]
			for _, form := range []string{key.Value, "." + key.Value, "[" + key.Value + "]",
				"[" + strconv.Quote(key.Value) + "]"} {
				if after, is := cutPart(path, form); is && len(key.Value) >= longest {
					longest = len(key.Value)
					next, line, rest = node.Content[i+1], key.Line, after
				}
			}
		}
	}
	return next, line, rest
}

// cutPart removes a complete part from the beginning of a path.
func cutPart(path, part string) (rest string, is bool) {
	rest, is = strings.CutPrefix(path, part)
	return rest, is && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// target returns the node that an alias refers to, or the node itself.
func target(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// valueOf returns the value of a field, or nil if the field does not exist.
func valueOf(node *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == name {
			return target(node.Content[i+1])
		}
	}
	return nil
}
