package offline

import (
	"bytes"
	"errors"
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
	text := d.subject() + ": " + p.String()
	if at, exact := nodeAt(d.node, p.Path); exact {
		if read, differs := readAs(at); differs {
			text += fmt.Sprintf(valueReadAs, at.Value, read)
		}
	}
	return finding{d.file, d.before + lineOf(d.node, p.Path), text}
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

const mustBeObject = "must be an object"

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
		if line := secondDocument(part.text); line > 0 {
			problems = append(problems, finding{file, part.before + line, "only the first document is read; " +
				"separate documents with lines that consist of ---"})
		}
		d.node = target(root.Content[0])
		if d.node.Kind != yaml.MappingNode {
			problems = append(problems, finding{file, part.before + d.node.Line, mustBeObject})
			continue
		}
		ambiguous := keyProblems(d.node, "")
		object, err := decode(part.text)
		if err != nil {
			problems = append(problems, syntaxError(d, err))
			continue
		}
		d.Unstructured = &unstructured.Unstructured{Object: object}
		for _, p := range ambiguous {
			problems = append(problems, d.finding(p))
		}
		objects, found := d.items()
		all, problems = append(all, objects...), append(problems, found...)
	}
	return all, problems
}

// secondDocument returns the line of the second YAML document or JSON value in a text, or 0 if there is none. Parsers
// ignore it. The text has no lines that consist of ---.
func secondDocument(text []byte) (line int) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var first, second yaml.Node
	err := decoder.Decode(&first)
	if err == nil {
		err = decoder.Decode(&second)
	}
	switch {
	case errors.Is(err, io.EOF):
		return 0
	case err != nil: // for example two JSON objects
		return syntaxError(document{}, err).line
	case len(second.Content) == 0:
		return 0
	}
	return second.Content[0].Line
}

// decode reads an object. Like kubectl, it interprets values as YAML 1.1, in which yes is a boolean.
func decode(text []byte) (object map[string]any, err error) {
	data, err := k8syaml.YAMLToJSON(text)
	if err == nil {
		err = json.Unmarshal(data, &object)
	}
	return object, err
}

// items returns the items of a v1 List, or the document itself. Values that are not objects of the API are problems.
func (d document) items() (all []document, problems []finding) {
	for _, field := range []string{"apiVersion", "kind"} {
		if value, _ := d.Object[field].(string); value == "" {
			return nil, []finding{{d.file, d.before + lineOf(d.node, field),
				"must be an object with apiVersion and kind, which are strings"}}
		}
	}
	if d.GetKind() != "List" || d.GetAPIVersion() != "v1" {
		return []document{d}, nil
	}
	items, _ := d.Object["items"].([]any)
	nodes := valueOf(d.node, "items")
	for i, item := range items {
		one := d // keeps the position of the list if the items come from a merge key
		if nodes != nil && i < len(nodes.Content) {
			one.node = target(nodes.Content[i])
		}
		object, is := item.(map[string]any)
		if !is {
			problems = append(problems, finding{d.file, d.before + one.node.Line, mustBeObject})
			continue
		}
		one.Unstructured = &unstructured.Unstructured{Object: object}
		documents, found := one.items()
		all, problems = append(all, documents...), append(problems, found...)
	}
	return all, problems
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
