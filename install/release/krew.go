package main

import (
	"errors"

	"sigs.k8s.io/yaml"
)

// pluginName is the name of the kubectl plugin: see "The kubectl plugin" in docs/operations.md.
const pluginName = "blueprint"

// plugin is a manifest for krew. Its Go module cannot be used, because it requires an old version of client-go. The
// fields are described in https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest.
type plugin struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Metadata   pluginMeta `json:"metadata"`
	Spec       pluginSpec `json:"spec"`
}

type pluginMeta struct {
	Name string `json:"name"`
}

type pluginSpec struct {
	Version          string           `json:"version"`
	Homepage         string           `json:"homepage"`
	ShortDescription string           `json:"shortDescription"`
	Description      string           `json:"description"`
	Platforms        []pluginPlatform `json:"platforms"`
}

type pluginPlatform struct {
	Selector pluginSelector `json:"selector"`
	URI      string         `json:"uri"`
	SHA256   string         `json:"sha256"`
	Bin      string         `json:"bin"`
}

type pluginSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// writeKrew writes a manifest with which "kubectl krew install --manifest" installs the program as kubectl-blueprint.
func (b *builder) writeKrew(dir string) error {
	manifest := plugin{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin",
		Metadata: pluginMeta{Name: pluginName},
		Spec: pluginSpec{
			Version: b.version, Homepage: "https://" + b.module,
			ShortDescription: "Check and explain Blueprints and their instances",
			Description: "Checks Blueprints before they are applied, and explains why a Blueprint or an instance is not\n" +
				"healthy. The cluster must run dynamic-controller, except for validate and render.\n",
		},
	}
	for _, a := range b.artifacts {
		if a.binary.path == "" {
			continue
		}
		manifest.Spec.Platforms = append(manifest.Spec.Platforms, pluginPlatform{
			Selector: pluginSelector{map[string]string{"os": a.binary.OS, "arch": a.binary.Arch}},
			URI:      "https://" + b.module + "/releases/download/" + b.version + "/" + a.name,
			SHA256:   a.digest, Bin: a.binary.path,
		})
	}
	if len(manifest.Spec.Platforms) == 0 {
		return errors.New("no platform has a binary")
	}
	content, err := yaml.Marshal(manifest)
	if err != nil {
		return err
	}
	return b.write(dir, pluginName+".yaml", content, binary{})
}
