package offline

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	k8syaml "sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// document is an object in a file.
type document struct {
	*unstructured.Unstructured
	file   string
	before int // number of lines before the document
	node   *yaml.Node
}

// subject identifies the object in messages.
func (d document) subject() string {
	name := d.GetName()
	if name == "" {
		name = d.GetGenerateName()
	}
	return strings.ToLower(d.GetKind()) + "/" + name
}

func (d document) finding(p blueprint.Problem) finding {
	return finding{d.file, d.before + lineOf(d.node, p.Path), d.subject() + ": " + p.String()}
}

// finding is a problem and its position in a file.
type finding struct {
	file string
	line int
	text string
}

func (f finding) String() string {
	return fmt.Sprintf("%s:%d: %s", f.file, f.line, strings.Join(strings.Fields(f.text), " "))
}

// extensions lists the extensions of the files that are read from a directory. They are the same as in kubectl.
var extensions = []string{".yaml", ".yml", ".json"}

// readAll reads the objects in files and directories. The name "-" stands for stdin. Each file is read only once.
func readAll(paths []string, stdin io.Reader) (all []document, problems []finding, err error) {
	seen := map[string]bool{}
	for _, path := range paths {
		files, err := filesIn(path)
		if err != nil {
			return nil, nil, err
		}
		for _, file := range files {
			if seen[filepath.Clean(file)] {
				continue
			}
			seen[filepath.Clean(file)] = true
			var data []byte
			if file == "-" {
				data, err = io.ReadAll(stdin)
			} else {
				data, err = os.ReadFile(file)
			}
			if err != nil {
				return nil, nil, fmt.Errorf("read %s: %w", file, err)
			}
			documents, found := parse(file, data)
			all, problems = append(all, documents...), append(problems, found...)
		}
	}
	return all, problems, nil
}

// filesIn returns the files in a directory and its subdirectories, or the path itself if it is not a directory.
func filesIn(path string) (files []string, err error) {
	if path == "-" {
		return []string{path}, nil
	}
	err = filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && (file == path || slices.Contains(extensions, filepath.Ext(file))) {
			files = append(files, file)
		}
		return err
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s contains no .yaml, .yml or .json files", path)
	}
	return files, err
}

// parse reads the YAML documents in a file.
func parse(file string, data []byte) (all []document, problems []finding) {
	for _, part := range split(data) {
		d := document{file: file, before: part.before}
		var root yaml.Node
		if err := yaml.Unmarshal(part.text, &root); err != nil {
			problems = append(problems, syntaxError(d, err))
			continue
		}
		if len(root.Content) == 0 || root.Content[0].Tag == "!!null" {
			continue // the document contains only comments
		}
		d.node = target(root.Content[0])
		if d.node.Kind != yaml.MappingNode {
			problems = append(problems, finding{file, part.before + d.node.Line, "must be an object"})
			continue
		}
		duplicates := duplicateFields(d.node, "")
		object, err := decode(part.text)
		if err != nil {
			problems = append(problems, syntaxError(d, err))
			continue
		}
		d.Unstructured = &unstructured.Unstructured{Object: object}
		for _, p := range duplicates {
			problems = append(problems, d.finding(p))
		}
		all = append(all, d.items()...)
	}
	return all, problems
}

// decode reads an object. Like kubectl, it interprets values as YAML 1.1, in which yes is a boolean.
func decode(text []byte) (object map[string]any, err error) {
	data, err := k8syaml.YAMLToJSON(text)
	if err == nil {
		err = json.Unmarshal(data, &object)
	}
	return object, err
}

// items returns the items of a v1 List, or the document itself.
func (d document) items() []document {
	if d.GetKind() != "List" || d.GetAPIVersion() != "v1" {
		return []document{d}
	}
	items, _ := d.Object["items"].([]any)
	nodes := valueOf(d.node, "items")
	var all []document
	for i, item := range items {
		one := d // keeps the position of the list if the items come from a merge key
		if nodes != nil && i < len(nodes.Content) {
			one.node = target(nodes.Content[i])
		}
		if object, is := item.(map[string]any); is {
			one.Unstructured = &unstructured.Unstructured{Object: object}
			all = append(all, one.items()...)
		}
	}
	return all
}

// part is one YAML document.
type part struct {
	before int // number of lines before the document
	text   []byte
}

// split splits a file at the lines that begin with "---".
func split(data []byte) (parts []part) {
	current, line := part{}, 0
	for text := range bytes.Lines(data) {
		line++
		if rest, is := bytes.CutPrefix(text, []byte("---")); is {
			rest = bytes.TrimSpace(rest)
			if len(rest) == 0 || rest[0] == '#' {
				parts = append(parts, current)
				current = part{before: line}
				continue
			}
		}
		current.text = append(current.text, text...)
	}
	return append(parts, current)
}

var lineNumber = regexp.MustCompile(`line (\d+): `)

// syntaxError converts a parser error to a finding. The error usually contains a line number.
func syntaxError(d document, err error) finding {
	text, line := err.Error(), 1
	if m := lineNumber.FindStringSubmatchIndex(text); m != nil {
		line, _ = strconv.Atoi(text[m[2]:m[3]])
		text = text[:m[0]] + text[m[1]:]
	}
	return finding{d.file, d.before + line, "invalid YAML: " + strings.TrimPrefix(text, "yaml: ")}
}
