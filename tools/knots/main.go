// Command knots lists the pairs of types of a package that use each other: a method of each selects a field or a method
// of the other. Such types can be understood and tested only together.
//
//	go run ./knots -C .. ./dynamiccontroller/...
//
// With -max, it compares the number of pairs of each package with the maximum in a file; see max.txt. "make verify"
// does so.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/types"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	dir := flag.String("C", ".", "the directory of the module")
	verbose := flag.Bool("v", false, "print what is used")
	limits := flag.String("max", "", "a `file` with the maximum of each package; only problems are printed then")
	flag.Parse()
	if err := run(*dir, *limits, *verbose, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "knots:", err)
		os.Exit(1)
	}
}

func run(dir, limits string, verbose bool, patterns []string) error {
	pkgs, err := load(dir, patterns)
	if err != nil {
		return err
	}
	if limits != "" {
		return check(limits, pkgs)
	}
	total := 0
	for _, pkg := range pkgs {
		total += len(pkg.knots)
		if len(pkg.knots) > 0 {
			fmt.Printf("%s: %d\n%s", pkg.path, len(pkg.knots), describe(pkg.knots, verbose))
		}
	}
	fmt.Printf("%d pairs\n", total)
	return nil
}

// knotted is a package and its pairs.
type knotted struct {
	path  string // within the module
	knots []knot
}

// load returns the packages in the order of their paths. The types of other packages are read from export data.
func load(dir string, patterns []string) (all []knotted, err error) {
	const mode = packages.NeedName | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo |
		packages.NeedImports | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedModule
	pkgs, err := packages.Load(&packages.Config{Mode: mode, Dir: dir}, patterns...)
	if err != nil {
		return nil, fmt.Errorf("load the packages: %w", err)
	}
	if packages.PrintErrors(pkgs) > 0 {
		return nil, fmt.Errorf("the packages have errors")
	}
	for _, pkg := range pkgs {
		all = append(all, knotted{strings.TrimPrefix(pkg.PkgPath, pkg.Module.Path+"/"), knotsOf(pkg)})
	}
	slices.SortFunc(all, func(a, b knotted) int { return strings.Compare(a.path, b.path) })
	return all, nil
}

// describe returns a line for each pair and, if verbose is true, two lines with what its types use.
func describe(knots []knot, verbose bool) string {
	var text strings.Builder
	for _, k := range knots {
		fmt.Fprintf(&text, "  %s, %s\n", k.a, k.b)
		if verbose {
			fmt.Fprintf(&text, "    %s: %s\n    %s: %s\n", k.a, strings.Join(k.byA, " "), k.b, strings.Join(k.byB, " "))
		}
	}
	return text.String()
}

// knot is a pair of types, and what the methods of each use of the other.
type knot struct {
	a, b     string
	byA, byB []string
}

// uses has the members of other types that the methods of a type select, by type and other type.
type uses map[string]map[string][]string

func knotsOf(pkg *packages.Package) (found []knot) {
	all := uses{}
	for _, file := range pkg.Syntax {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv != nil && f.Body != nil {
				all.addMethod(pkg, f)
			}
		}
	}
	for a, others := range all {
		for b, byA := range others {
			if byB := all[b][a]; a < b && len(byB) > 0 {
				found = append(found, knot{a, b, byA, byB})
			}
		}
	}
	slices.SortFunc(found, func(x, y knot) int { return strings.Compare(x.a+" "+x.b, y.a+" "+y.b) })
	return found
}

func (u uses) addMethod(pkg *packages.Package, f *ast.FuncDecl) {
	method, _ := pkg.TypesInfo.Defs[f.Name].(*types.Func)
	own := nameOf(method.Signature().Recv().Type(), pkg.Types)
	ast.Inspect(f.Body, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		selection := pkg.TypesInfo.Selections[selector]
		if selection == nil {
			return true
		}
		other := nameOf(ownerOf(selection), pkg.Types)
		if other == "" || other == own {
			return true
		}
		if u[own] == nil {
			u[own] = map[string][]string{}
		}
		if used := u[own][other]; !slices.Contains(used, selector.Sel.Name) {
			u[own][other] = append(used, selector.Sel.Name)
		}
		return true
	})
}

// ownerOf returns the type that declares the selected field or method, which can be embedded in that of the expression.
func ownerOf(s *types.Selection) types.Type {
	if f, ok := s.Obj().(*types.Func); ok {
		return f.Signature().Recv().Type()
	}
	owner := s.Recv()
	for _, i := range s.Index()[:len(s.Index())-1] {
		owner = structOf(owner).Field(i).Type()
	}
	return owner
}

func structOf(t types.Type) *types.Struct {
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	s, _ := t.Underlying().(*types.Struct)
	return s
}

// nameOf returns the name of a type of the package, or an empty string.
func nameOf(t types.Type, pkg *types.Package) string {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	named, ok := types.Unalias(t).(*types.Named)
	if !ok || named.Obj().Pkg() != pkg {
		return ""
	}
	return named.Obj().Name()
}
