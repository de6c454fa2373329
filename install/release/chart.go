package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/chart/v2/util"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/install/internal/platform"
)

// writeChart packages the chart. Its version is that of the release, and its defaults are the image of the release.
func (b *builder) writeChart(dir string) error {
	source := filepath.Join(b.dir, "install", "charts", platform.Name)
	loaded, err := loader.LoadDir(source)
	if err != nil {
		return err
	}
	// The appVersion is the default tag of the image.
	loaded.Metadata.Version, loaded.Metadata.AppVersion = b.number(), b.version
	before := []byte("\n  repository: " + platform.Name + "\n")
	for _, f := range loaded.Raw {
		if f.Name != util.ValuesfileName {
			continue
		}
		if bytes.Count(f.Data, before) != 1 {
			return fmt.Errorf("%s/%s does not set image.repository to %s", source, f.Name, platform.Name)
		}
		f.Data = bytes.Replace(f.Data, before, []byte("\n  repository: "+b.repository+"\n"), 1)
	}
	b.setTimes(loaded)
	work, err := os.MkdirTemp("", "release-chart-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	path, err := util.Save(loaded, work)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return b.write(dir, filepath.Base(path), content, binary{})
}

// setTimes sets the times of all files in the chart.
func (b *builder) setTimes(c *chart.Chart) {
	c.ModTime, c.SchemaModTime = b.date, b.date
	for _, f := range c.Raw {
		f.ModTime = b.date
	}
	for _, f := range c.Templates {
		f.ModTime = b.date
	}
	for _, f := range c.Files {
		f.ModTime = b.date
	}
}

// writeManifests writes the manifests of the kustomization with the image of the release.
func (b *builder) writeManifests(work, dir string) error {
	overlay := filepath.Join(work, "overlay")
	if err := os.Mkdir(overlay, 0o755); err != nil {
		return err
	}
	base, err := relativePath(overlay, filepath.Join(b.dir, "install", "kustomize"))
	if err != nil {
		return err
	}
	kustomization, err := yaml.Marshal(map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": []string{base},
		"images": []map[string]string{{"name": platform.Name, "newName": b.repository, "newTag": b.version}},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), kustomization, 0o644); err != nil {
		return err
	}
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), overlay)
	if err != nil {
		return err
	}
	content, err := objects.AsYaml()
	if err != nil {
		return err
	}
	return b.write(dir, platform.Name+"_"+b.version+".yaml", content, binary{})
}

// relativePath resolves symbolic links, as kustomize does.
func relativePath(from, to string) (string, error) {
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return "", err
	}
	if to, err = filepath.Abs(to); err != nil {
		return "", err
	}
	if to, err = filepath.EvalSymlinks(to); err != nil {
		return "", err
	}
	return filepath.Rel(from, to)
}
