package children

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// isImpure reports whether a name of package time or context is a clock or a context. Durations, times and errors are
// values.
func isImpure(path, name string) bool {
	switch path {
	case "time":
		return slices.Contains([]string{
			"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until",
		}, name)
	case "context":
		return name != "Canceled" && name != "DeadlineExceeded"
	}
	return false
}

// impurities returns the uses of clients, clocks and contexts in a file.
func impurities(fset *token.FileSet, file *ast.File) (found []string) {
	at := func(node ast.Node, text string) {
		found = append(found, fmt.Sprintf("%s: %s", fset.Position(node.Pos()), text))
	}
	paths := map[string]string{} // of time and context, by their names in the file
	for _, spec := range file.Imports {
		switch path, _ := strconv.Unquote(spec.Path.Value); {
		case path == "k8s.io/client-go", strings.HasPrefix(path, "k8s.io/client-go/"):
			at(spec, path)
		case path != "time" && path != "context":
		case spec.Name == nil:
			paths[path] = path
		case spec.Name.Name == ".":
			at(spec, path+", without a name,")
		default:
			paths[spec.Name.Name] = path
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		name, ok := selector.X.(*ast.Ident)
		if ok && isImpure(paths[name.Name], selector.Sel.Name) {
			at(selector, paths[name.Name]+"."+selector.Sel.Name)
		}
		return true
	})
	return found
}

// What decides has no client and no clock: what the API server answers, and when, is an input. Only package act sends
// requests.
func TestPure_DecisionsUseNoClientClockOrContext(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("internal", "*", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	checked := map[string]bool{}
	for _, path := range paths {
		name := filepath.Base(filepath.Dir(path))
		if name == "act" || strings.HasSuffix(path, "_test.go") {
			continue
		}
		checked[name] = true
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, impurity := range impurities(fset, file) {
			t.Errorf("%s must not be used in package %s", impurity, name)
		}
	}
	if !checked["compare"] || !checked["decide"] || !checked["desire"] {
		t.Errorf("checked only the packages %v", checked)
	}
}

func TestImpurities(t *testing.T) {
	for name, test := range map[string]struct {
		source string
		want   string // a part of the only impurity, or "" for a pure file
	}{
		"the current time":            {"import \"time\"\nvar x = time.Now()", "time.Now"},
		"the time since an event":     {"import \"time\"\nvar x = time.Since(y)", "time.Since"},
		"the time until an event":     {"import \"time\"\nvar x = time.Until(y)", "time.Until"},
		"a clock as a value":          {"import \"time\"\nvar x = time.Now", "time.Now"},
		"an import with another name": {"import clock \"time\"\nvar x = clock.Now()", "time.Now"},
		"an import without a name":    {"import . \"time\"\nvar x = Now()", "without a name"},
		"a context":                   {"import \"context\"\nvar x context.Context", "context.Context"},
		"a function of contexts":      {"import \"context\"\nvar x = context.Cause(y)", "context.Cause"},
		"an error of contexts":        {"import \"context\"\nvar x = context.Canceled", ""},
		"a client":                    {"import \"k8s.io/client-go/dynamic\"", "k8s.io/client-go/dynamic"},
		"a client for REST":           {"import _ \"k8s.io/client-go/rest\"", "k8s.io/client-go/rest"},
		"typed clients":               {"import \"k8s.io/client-go/kubernetes\"", "k8s.io/client-go/kubernetes"},
		"a duration":                  {"import \"time\"\nvar x = time.Duration(3) * time.Second", ""},
		"a method of a value":         {"import \"time\"\nvar x = y.Now().Sub(time.Time{})", ""},
	} {
		t.Run(name, func(t *testing.T) {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, "x.go", "package x\n"+test.source, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			found := impurities(fset, file)
			if (len(found) == 0) != (test.want == "") || len(found) > 1 {
				t.Fatalf("got %q, want %q", found, test.want)
			}
			if len(found) == 1 && !strings.Contains(found[0], test.want) {
				t.Errorf("got %q, want %q", found, test.want)
			}
		})
	}
}
