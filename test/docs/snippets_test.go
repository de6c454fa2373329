package docs

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// call is a simple command of a snippet, after the expansions of the shell.
type call struct {
	command
	args []string
	// dirs contains the folders in which the reader can be: that of the document, that of the repository, and
	// examples/blueprints, or the folders in them after cd.
	dirs []string
}

// Every command must have existing subcommands, flags, files, folders and targets.
func TestSnippets_NameExistingCommandsFlagsAndFiles(t *testing.T) {
	inBlocks, inline := 0, 0
	for _, d := range documents(t) {
		for _, block := range d.blocks {
			for _, c := range callsOf(t, d, block) {
				inBlocks++
				checkCall(t, c)
			}
		}
		for _, span := range d.spans {
			if isCommand(span.text) {
				for _, c := range callsOf(t, d, []command{span}) {
					inline++
					checkCall(t, c)
				}
			}
		}
	}
	if inBlocks < 100 || inline < 60 {
		t.Errorf("found only %d commands in blocks, and %d inline", inBlocks, inline)
	}
}

// isCommand reports whether inline code is a command with arguments.
func isCommand(text string) bool {
	for i, word := range strings.Fields(text) {
		if strings.Contains(word, "=") {
			continue // an assignment, or an option
		}
		_, known := checks[word]
		return known && i+1 < len(strings.Fields(text))
	}
	return false
}

// callsOf returns the simple commands of a block.
func callsOf(t *testing.T, d document, block []command) (calls []call) {
	t.Helper()
	dirs := []string{filepath.Join(root, filepath.Dir(d.path)), root, filepath.Join(root, "examples/blueprints")}
	for _, c := range block {
		file, err := syntax.NewParser(syntax.Variant(syntax.LangPOSIX)).Parse(strings.NewReader(c.text), "")
		if err != nil {
			t.Errorf("%s: %v", c, err)
			continue
		}
		syntax.Walk(file, func(node syntax.Node) bool {
			simple, ok := node.(*syntax.CallExpr)
			if !ok || len(simple.Args) == 0 {
				return true
			}
			args, err := expand.Fields(expansion, simple.Args...)
			if err != nil {
				t.Errorf("%s: %v", c, err)
				return false
			}
			calls = append(calls, call{command: c, args: args, dirs: dirs})
			if args[0] == "cd" {
				dirs = inFolder(dirs, args[len(args)-1])
			}
			return true
		})
	}
	return calls
}

// expansion replaces variables and substituted commands with a word. The commands are checked as well.
var expansion = &expand.Config{
	Env: expand.FuncEnviron(func(name string) string {
		if name == "IFS" {
			return " \t\n"
		}
		return "value"
	}),
	CmdSubst: func(w io.Writer, _ *syntax.CmdSubst) error {
		_, err := io.WriteString(w, "output")
		return err
	},
}

// inFolder returns the folders of that name that exist.
func inFolder(dirs []string, name string) (inside []string) {
	for _, dir := range dirs {
		dir = filepath.Join(dir, name)
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			inside = append(inside, dir)
		}
	}
	return inside
}

func checkCall(t *testing.T, c call) {
	t.Helper()
	check, known := checks[c.args[0]]
	if !known {
		t.Errorf("%s: %s is an unknown command: add a check to the test", c, c.args[0])
		return
	}
	if check != nil {
		t.Run(fmt.Sprintf("%s:%d", c.doc, c.line), func(t *testing.T) {
			t.Parallel()
			defer func() {
				if t.Failed() {
					t.Logf("the command is %q", c.args)
				}
			}()
			check(t, c)
		})
	}
}

// savedFiles contains files that a document shows, or tells the reader to save.
var savedFiles = map[string][]string{
	"README.md":          {"blueprint.yaml", "website.yaml"},
	"docs/blueprints.md": {"books.yaml", "service.yaml", "shops.yaml"},
}

// isPlaceholder reports whether the reader has to replace a word, such as NAME.
func isPlaceholder(word string) bool {
	return word == strings.ToUpper(word) && word != strings.ToLower(word)
}

// checkFiles checks that the files among the arguments exist.
func checkFiles(t *testing.T, c call) {
	t.Helper()
	for i, arg := range c.args[1:] {
		switch c.args[i] {
		case "-f", "-k", "--filename", "--kustomize", "--values":
			if arg == "-" || isPlaceholder(arg) {
				continue
			}
		default:
			if strings.HasPrefix(arg, "-") || !isFile(arg) {
				continue
			}
		}
		if !c.exists(arg) && !slices.Contains(savedFiles[c.doc], arg) {
			t.Errorf("%s does not exist", arg)
		}
	}
}

// isFile reports whether an argument without an option is the name of a file.
func isFile(arg string) bool {
	if first, _, nested := strings.Cut(arg, "/"); nested && len(inFolder([]string{root}, first)) > 0 && first != "" {
		return true
	}
	return filepath.Ext(arg) == ".yaml"
}

func (c call) exists(file string) bool {
	return slices.ContainsFunc(c.dirs, func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, file))
		return err == nil
	})
}
