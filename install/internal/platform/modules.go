package platform

import (
	"cmp"
	"debug/buildinfo"
	"slices"
	"strings"
)

// Module is a Go module in a binary.
type Module struct {
	PackageURL string
	Sum        string // the checksum in go.sum; the standard library has none
}

// AppendModules adds the modules in a binary, and the standard library, to modules. The result is sorted and has no
// duplicates.
func AppendModules(modules []Module, binary string) ([]Module, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	modules = append(modules, Module{library("std", strings.TrimPrefix(info.GoVersion, "go")).PackageURL, ""})
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		modules = append(modules, Module{library(module.Path, module.Version).PackageURL, module.Sum})
	}
	slices.SortFunc(modules, func(a, b Module) int { return cmp.Compare(a.PackageURL, b.PackageURL) })
	return slices.Compact(modules), nil
}
