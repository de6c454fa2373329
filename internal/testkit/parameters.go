package testkit

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
)

// Parameters returns what callers can pass to the Go package in a directory: the parameters of its exported functions
// and of the exported methods of its exported types, and the exported fields of its exported structs. The keys are
// "WithIndex.f", "Mapper.Subscribe.f" or "Config.Workers", and the values are the types as they are written in the
// source. Files of tests are ignored.
func Parameters(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the package: %w", err)
	}
	all := parameters{}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, entry.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse the package: %w", err)
		}
		for _, declaration := range file.Decls {
			all.addDeclaration(declaration)
		}
	}
	return all, nil
}

// parameters maps the names of parameters and fields to their types.
type parameters map[string]string

func (p parameters) addDeclaration(declaration ast.Decl) {
	switch d := declaration.(type) {
	case *ast.FuncDecl:
		p.addFunction(d)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			if t, ok := spec.(*ast.TypeSpec); ok && t.Name.IsExported() {
				if s, ok := t.Type.(*ast.StructType); ok {
					p.addFields(t.Name.Name, s)
				}
			}
		}
	}
}

func (p parameters) addFunction(d *ast.FuncDecl) {
	name := d.Name.Name
	if d.Recv != nil {
		receiver := strings.TrimPrefix(types.ExprString(d.Recv.List[0].Type), "*")
		if !ast.IsExported(receiver) {
			return
		}
		name = receiver + "." + name
	}
	if !d.Name.IsExported() {
		return
	}
	for _, field := range d.Type.Params.List {
		for _, parameter := range field.Names {
			p[name+"."+parameter.Name] = types.ExprString(field.Type)
		}
	}
}

func (p parameters) addFields(name string, s *ast.StructType) {
	for _, field := range s.Fields.List {
		for _, f := range field.Names {
			if f.IsExported() {
				p[name+"."+f.Name] = types.ExprString(field.Type)
			}
		}
	}
}
