// Program apilist prints the exported identifiers of the public packages of a module as Markdown, each with its
// declaration and the first sentence of its documentation.
//
//	apilist DIR
//
// "make api" writes the list to docs/api.md, and "make verify" compares it. A change of the API thus shows in a review.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/doc"
	"go/printer"
	"go/token"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: apilist DIR")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "apilist:", err)
		os.Exit(1)
	}
}

const header = `# The API

The exported identifiers of the library, each with the first sentence of its documentation. "make api" writes this file
from the source, and "make verify" fails if it is out of date, so that no change of the API goes unnoticed.
[VERSIONING.md](../VERSIONING.md) says which packages are stable, and which changes are allowed.
`

func run(dir string) error {
	mode := packages.NeedName | packages.NeedModule | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes |
		packages.NeedImports
	all, err := packages.Load(&packages.Config{Mode: mode, Dir: dir}, "./...")
	if err != nil {
		return fmt.Errorf("load the packages: %w", err)
	}
	if packages.PrintErrors(all) > 0 {
		return fmt.Errorf("the packages of %s have errors", dir)
	}
	slices.SortFunc(all, func(a, b *packages.Package) int { return strings.Compare(a.PkgPath, b.PkgPath) })
	fmt.Print(header)
	for _, pkg := range all {
		path := strings.TrimPrefix(pkg.PkgPath, pkg.Module.Path+"/")
		if pkg.Name == "main" || slices.Contains(strings.Split(path, "/"), "internal") {
			continue
		}
		docs, err := doc.NewFromFiles(pkg.Fset, pkg.Syntax, pkg.PkgPath)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		fmt.Printf("\n## [%s](../%s)\n\n%s\n\n", path, path, sentence(docs, docs.Doc))
		l := list{pkg.Fset, docs}
		l.values(docs.Consts)
		l.values(docs.Vars)
		l.funcs(docs.Funcs)
		for _, t := range docs.Types {
			l.typ(t)
		}
	}
	return nil
}

// list prints the identifiers of a package.
type list struct {
	fset *token.FileSet
	docs *doc.Package
}

func (l list) print(declaration, text string) {
	fmt.Printf("- `%s`", declaration)
	if text != "" {
		fmt.Printf(": %s", text)
	}
	fmt.Println()
}

// values prints constants and variables.
func (l list) values(groups []*doc.Value) {
	for _, group := range groups {
		for _, spec := range group.Decl.Specs {
			value := spec.(*ast.ValueSpec)
			text := firstOf(value.Doc.Text(), value.Comment.Text(), group.Doc)
			for _, name := range value.Names {
				if name.IsExported() {
					l.print(group.Decl.Tok.String()+" "+name.Name+l.typeOf(value.Type), sentence(l.docs, text))
				}
			}
		}
	}
}

func (l list) typeOf(t ast.Expr) string {
	if t == nil {
		return ""
	}
	return " " + l.source(t)
}

func (l list) funcs(funcs []*doc.Func) {
	for _, f := range funcs {
		declaration := *f.Decl
		declaration.Body, declaration.Doc = nil, nil
		l.print(l.source(&declaration), sentence(l.docs, f.Doc))
	}
}

func (l list) typ(t *doc.Type) {
	spec := t.Decl.Specs[0].(*ast.TypeSpec)
	var members []*ast.Field
	declaration := "type " + spec.Name.Name
	if spec.TypeParams != nil {
		var parameters []string
		for _, p := range spec.TypeParams.List {
			for _, name := range p.Names {
				parameters = append(parameters, name.Name+" "+l.source(p.Type))
			}
		}
		declaration += "[" + strings.Join(parameters, ", ") + "]"
	}
	switch {
	case spec.Assign.IsValid():
		declaration += " = " + l.source(spec.Type)
	default:
		switch of := spec.Type.(type) {
		case *ast.StructType:
			declaration, members = declaration+" struct", of.Fields.List
		case *ast.InterfaceType:
			declaration, members = declaration+" interface", of.Methods.List
		default:
			declaration += " " + l.source(spec.Type)
		}
	}
	l.print(declaration, sentence(l.docs, t.Doc))
	for _, member := range members {
		l.member(spec.Name.Name, member)
	}
	l.values(t.Consts)
	l.values(t.Vars)
	l.funcs(t.Funcs)
	l.funcs(t.Methods)
}

// member prints a field of a struct, or a method of an interface.
func (l list) member(of string, member *ast.Field) {
	text := sentence(l.docs, firstOf(member.Doc.Text(), member.Comment.Text()))
	if len(member.Names) == 0 && ast.IsExported(strings.TrimLeft(l.source(member.Type), "*")) {
		l.print(of+" embeds "+l.source(member.Type), text)
	}
	for _, name := range member.Names {
		if name.IsExported() {
			l.print(of+"."+name.Name+strings.TrimPrefix(" "+l.source(member.Type), " func"), text)
		}
	}
}

// source returns the source of a node in one line.
func (l list) source(node any) string {
	var text bytes.Buffer
	config := printer.Config{Mode: printer.RawFormat}
	if err := config.Fprint(&text, l.fset, node); err != nil {
		return err.Error()
	}
	line := strings.Join(strings.Fields(text.String()), " ")
	return strings.NewReplacer("( ", "(", ", )", ")", " )", ")").Replace(line)
}

// sentence returns the first sentence of a documentation, without links.
func sentence(docs *doc.Package, text string) string {
	return strings.NewReplacer("[", "", "]", "").Replace(docs.Synopsis(text))
}

// firstOf returns the first text that is not empty.
func firstOf(texts ...string) string {
	for _, text := range texts {
		if strings.TrimSpace(text) != "" {
			return text
		}
	}
	return ""
}
