// Program apidiff prints the incompatible changes of the exported API of a module between two directories.
//
//	apidiff OLD NEW
//
// It compares the packages that other modules are meant to import: not those of programs, nor those in internal, cmd,
// examples and test. The module mode of golang.org/x/exp/cmd/apidiff does not work with current versions of x/tools.
package main

import (
	"errors"
	"fmt"
	"go/types"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/exp/apidiff"
	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: apidiff OLD NEW")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "apidiff:", err)
		os.Exit(1)
	}
}

func run(oldDir, newDir string) error {
	before, err := load(oldDir)
	if err != nil {
		return err
	}
	after, err := load(newDir)
	if err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(before)) {
		if after[path] == nil {
			fmt.Printf("%s: removed\n", path)
			continue
		}
		for _, change := range apidiff.Changes(before[path], after[path]).Changes {
			if !change.Compatible {
				fmt.Printf("%s: %s\n", path, change.Message)
			}
		}
	}
	return nil
}

// load returns the public packages of the module in a directory, by import path.
func load(dir string) (map[string]*types.Package, error) {
	all, err := packages.Load(&packages.Config{Mode: packages.NeedName | packages.NeedModule, Dir: dir}, "./...")
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, p := range all {
		if p.Module != nil && p.Name != "main" && public(strings.TrimPrefix(p.PkgPath, p.Module.Path+"/")) {
			paths = append(paths, p.PkgPath)
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s contains no public packages", dir)
	}
	mode := packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
		packages.NeedTypes | packages.NeedTypesSizes | packages.NeedExportFile
	loaded, err := packages.Load(&packages.Config{Mode: mode, Dir: dir}, paths...)
	if err != nil {
		return nil, err
	}
	result := map[string]*types.Package{}
	for _, p := range loaded {
		for _, problem := range p.Errors {
			err = errors.Join(err, problem)
		}
		result[p.PkgPath] = p.Types
	}
	return result, err
}

// public reports whether a path in the module can have promises: see VERSIONING.md.
func public(path string) bool {
	elements := strings.Split(path, "/")
	return !slices.Contains(elements, "internal") && !slices.Contains([]string{"cmd", "examples", "test"}, elements[0])
}
