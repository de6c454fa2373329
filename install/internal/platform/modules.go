package platform

import (
	"cmp"
	"debug/buildinfo"
	"runtime/debug"
	"slices"
	"strings"
)

// Module is a Go module in a binary.
type Module struct {
	PackageURL string
	Sum        string // the checksum in go.sum; the standard library has none
}

// AppendModules adds the modules in a binary, and the standard library, to modules. The result is sorted and has no
// duplicates. Modules of this repository have the given version.
func AppendModules(modules []Module, binary, version string) ([]Module, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	modules = append(modules, Module{library("std", strings.TrimPrefix(info.GoVersion, "go")).PackageURL, ""})
	for _, module := range info.Deps {
		used := usedModule(module, version)
		modules = append(modules, Module{library(used.Path, used.Version).PackageURL, used.Sum})
	}
	slices.SortFunc(modules, func(a, b Module) int { return cmp.Compare(a.PackageURL, b.PackageURL) })
	return slices.Compact(modules), nil
}

// usedModule returns the module from which a package in a binary was compiled. A module that is replaced with a folder
// belongs to this repository, and has the given version.
func usedModule(module *debug.Module, version string) *debug.Module {
	switch {
	case module.Replace == nil:
		return module
	case module.Replace.Version == "" || module.Replace.Version == "(devel)":
		return &debug.Module{Path: module.Path, Version: version}
	}
	return module.Replace
}
