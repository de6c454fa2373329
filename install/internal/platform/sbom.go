package platform

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"os"
	"runtime/debug"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// SBOMSuffix is the end of the names of files with an SBOM.
const SBOMSuffix = ".cdx.json"

// NewSBOM returns the SBOM of a binary in CycloneDX's JSON format. It lists the modules that the linker has recorded in
// the binary, and the standard library. Modules of this repository have the same version as the binary.
func NewSBOM(binary, version string) ([]byte, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	encoder := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true)
	if err := encoder.EncodeVersion(newBOM(info, version, sha256.Sum256(content)), cdx.SpecVersion1_6); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func newBOM(info *debug.BuildInfo, version string, digest [sha256.Size]byte) *cdx.BOM {
	root := library(info.Main.Path, version)
	root.Type = cdx.ComponentTypeApplication
	root.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(digest[:])}}
	root.Licenses = &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}
	root.Properties = properties(info.Settings)

	components := []cdx.Component{library("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		components = append(components, moduleComponent(module, version))
	}
	refs := make([]string, len(components))
	for i, c := range components {
		refs[i] = c.BOMRef
	}
	bom := cdx.NewBOM()
	// The same binary has the same serial number, so that the SBOM is reproducible.
	bom.SerialNumber = uuid.NewSHA1(uuid.NameSpaceOID, digest[:]).URN()
	bom.Metadata = &cdx.Metadata{Component: &root}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: root.BOMRef, Dependencies: &refs}}
	return bom
}

func moduleComponent(module *debug.Module, version string) cdx.Component {
	used := usedModule(module, version)
	c := library(used.Path, used.Version)
	if used.Sum != "" {
		// The checksum of the files in the module, as in go.sum.
		c.Properties = &[]cdx.Property{{Name: "golang:h1", Value: used.Sum}}
	}
	return c
}

// library returns the component of a Go module.
func library(path, version string) cdx.Component {
	// The specification of package URLs requires lower case for Go modules, and "+" would mean a space.
	url := strings.ToLower("pkg:golang/"+path) + "@" + strings.ReplaceAll(version, "+", "%2B")
	return cdx.Component{
		BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url,
	}
}

// properties returns the settings of a build that determine its result.
func properties(settings []debug.BuildSetting) *[]cdx.Property {
	var all []cdx.Property
	for _, s := range settings {
		all = append(all, cdx.Property{Name: "golang:build:" + s.Key, Value: s.Value})
	}
	return &all
}
