package docs

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// document contains the shell snippets of a file.
type document struct {
	path   string      // Relative to the root of the repository.
	blocks [][]command // Of code blocks.
	spans  []command   // Of inline code, some of which are not commands.
}

// command is a command as a document shows it.
type command struct {
	doc    string // The path of the document.
	line   int    // Of its first line.
	text   string
	output string // Lines that the document shows as its output.
}

func (c command) String() string { return fmt.Sprintf("%s:%d: %s", c.doc, c.line, c.text) }

// documents returns all documents of the repository.
func documents(t *testing.T) (all []document) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if entry.IsDir() && (name == "bin" || strings.HasPrefix(name, ".") && name != ".") {
			return fs.SkipDir
		}
		if !entry.IsDir() && filepath.Ext(path) == ".md" {
			all = append(all, readDocument(t, name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func readDocument(t *testing.T, path string) document {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return parseDocument(path, source)
}

var markdown = goldmark.New(goldmark.WithExtensions(extension.Table))

func parseDocument(path string, source []byte) document {
	d := document{path: path}
	line := func(offset int) int { return 1 + bytes.Count(source[:offset], []byte("\n")) }
	_ = ast.Walk(markdown.Parser().Parse(text.NewReader(source)), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.CodeSpan:
			if n.ChildCount() > 0 {
				first := n.FirstChild().(*ast.Text)
				d.spans = append(d.spans, command{doc: path, line: line(first.Segment.Start), text: spanText(n, source)})
			}
		case *ast.CodeBlock:
			d.addBlock("", n.Lines(), source, line)
		case *ast.FencedCodeBlock:
			d.addBlock(string(n.Language(source)), n.Lines(), source, line)
		}
		return ast.WalkContinue, nil
	})
	return d
}

func spanText(n *ast.CodeSpan, source []byte) string {
	var b strings.Builder
	for child := n.FirstChild(); child != nil; child = child.NextSibling() {
		b.Write(child.(*ast.Text).Segment.Value(source))
	}
	return strings.ReplaceAll(b.String(), "\n", " ")
}

// addBlock adds the commands of a code block, if it is a shell snippet.
func (d *document) addBlock(language string, lines *text.Segments, source []byte, line func(int) int) {
	if text := lines.Value(source); len(bytes.TrimSpace(text)) == 0 || !isShell(language, string(text)) {
		return
	}
	var block []command
	continued, session := false, false
	for i := range lines.Len() {
		segment := lines.At(i)
		text := strings.TrimSuffix(string(segment.Value(source)), "\n")
		shown, prompt := strings.CutPrefix(text, "$ ")
		session = session || prompt
		switch last := len(block) - 1; {
		case continued:
			block[last].text += "\n" + text
		case session && !prompt:
			block[last].output += text + "\n"
			continue
		case strings.TrimSpace(shown) != "":
			block = append(block, command{doc: d.path, line: line(segment.Start), text: shown})
		}
		continued = strings.HasSuffix(text, `\`)
	}
	d.blocks = append(d.blocks, block)
}

// isShell reports whether a code block is a shell snippet.
func isShell(language, text string) bool {
	switch language {
	case "console", "bash", "sh", "shell":
		return true
	case "":
		words := strings.Fields(text)
		isYAML := words[0] == "-" || strings.HasSuffix(words[0], ":")
		isDiagram := strings.Contains(text, "─▶") && words[0] != "$"
		return !isYAML && !isDiagram
	}
	return false
}

func TestDocuments_ContainCommands(t *testing.T) {
	const source = `Some ` + "`kubectl get a \\| b`" + `.

    kubectl apply -f a.yaml # a comment
    kubectl create \
      role

    $ kubectl get a
    NAME

    other
    $ kubectl get b

1. A list:

       kubectl get c

| a |
|---|
| ` + "`kubectl get d \\| cat`" + ` |

Not commands:

    kind: A

` + "```go\npackage a\n```\n\n```\na ─▶ b\n```\n\n```sh\nkubectl get e\n```\n"
	got := parseDocument("a.md", []byte(source))
	want := []command{
		{"a.md", 3, "kubectl apply -f a.yaml # a comment", ""},
		{"a.md", 4, "kubectl create \\\n  role", ""},
		{"a.md", 7, "kubectl get a", "NAME\n\nother\n"},
		{"a.md", 11, "kubectl get b", ""},
		{"a.md", 15, "kubectl get c", ""},
		{"a.md", 34, "kubectl get e", ""},
	}
	var commands []command
	for _, block := range got.blocks {
		commands = append(commands, block...)
	}
	if fmt.Sprintf("%q", commands) != fmt.Sprintf("%q", want) {
		t.Errorf("got the commands %q, want %q", commands, want)
	}
	if len(got.spans) != 2 || got.spans[1].text != "kubectl get d | cat" || got.spans[1].line != 19 {
		t.Errorf("got the inline code %q", got.spans)
	}
}
