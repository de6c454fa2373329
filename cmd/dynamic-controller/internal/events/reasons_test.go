package events

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// declared returns all constants of type Reason.
func declared(t *testing.T) (reasons []Reason) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "reasons.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, declaration := range file.Decls {
		general, is := declaration.(*ast.GenDecl)
		if !is || general.Tok != token.CONST {
			continue
		}
		for _, spec := range general.Specs {
			constant := spec.(*ast.ValueSpec)
			if name, is := constant.Type.(*ast.Ident); !is || name.Name != "Reason" {
				continue
			}
			text, err := strconv.Unquote(constant.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			reasons = append(reasons, Reason(text))
		}
	}
	return reasons
}

// The table in the documentation must contain exactly the declared reasons, with their types.
func TestReasons_AreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (Normal|Warning) \\| (Blueprint|instance|both) \\|")
	documented := map[Reason]string{}
	for _, found := range row.FindAllStringSubmatch(string(text), -1) {
		documented[Reason(found[1])] = found[2]
	}
	reasons := declared(t)
	if len(reasons) != len(meanings) || len(reasons) != len(documented) {
		t.Errorf("got %d declared reasons, %d with a meaning, and %d in the documentation", len(reasons), len(meanings),
			len(documented))
	}
	for _, reason := range reasons {
		meaning, has := meanings[reason]
		if !has || documented[reason] != meaning.eventType {
			t.Errorf("%s: documented with type %q, want %q", reason, documented[reason], meaning.eventType)
		}
		if meaning.eventType != corev1.EventTypeNormal && meaning.eventType != corev1.EventTypeWarning ||
			meaning.action == "" || len(meaning.action) > 128 || len(reason) > 128 {
			t.Errorf("%s: the API server rejects %+v", reason, meaning)
		}
	}
}
