package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// repository is the name of the image in the archives.
	repository = "dynamic-controller"
	binaryPath = "dynamic-controller"
	sbomPath   = "sbom.cdx.json"
	sbomSuffix = ".cdx.json"
)

// platformImage is the image for one architecture.
type platformImage struct {
	v1.Image
	arch string
	sbom []byte
}

// newImage returns an image that contains a binary and its SBOM.
func (b build) newImage(binary, arch string) (platformImage, error) {
	none := platformImage{}
	sbom, err := newSBOM(binary, b.version)
	if err != nil {
		return none, err
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return none, err
	}
	files, err := b.archive([]file{{binaryPath, 0o555, content}, {sbomPath, 0o444, sbom}})
	if err != nil {
		return none, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return none, err
	}
	image, err := mutate.Append(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON),
		types.OCIManifestSchema1), mutate.Addendum{
		Layer: layer, MediaType: types.OCILayer,
		History: v1.History{Created: v1.Time{Time: b.date}, CreatedBy: "make image"},
	})
	if err != nil {
		return none, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return none, err
	}
	image, err = mutate.ConfigFile(image, b.configure(config.DeepCopy(), arch))
	return platformImage{Image: image, arch: arch, sbom: sbom}, err
}

// configure completes the configuration of an image for an architecture.
func (b build) configure(config *v1.ConfigFile, arch string) *v1.ConfigFile {
	config.OS, config.Architecture = "linux", arch
	config.Created = v1.Time{Time: b.date}
	config.Config = v1.Config{
		Entrypoint: []string{"/" + binaryPath}, User: "65532:65532", Labels: b.labels(),
	}
	return config
}

// labels returns the annotations of the index and the labels of each image.
func (b build) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    repository,
		"org.opencontainers.image.version":  b.version,
		"org.opencontainers.image.revision": b.commit,
		"org.opencontainers.image.created":  b.date.Format(time.RFC3339),
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
}

// file is a file of a layer.
type file struct {
	path    string
	mode    int64
	content []byte
}

// archive returns a tar archive of files that belong to root.
func (b build) archive(files []file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.path, Mode: f.mode, Size: int64(len(f.content)), ModTime: b.date,
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// newIndex returns an index of images for several architectures.
func (b build) newIndex(images []platformImage) v1.ImageIndex {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image.Image,
			Descriptor: v1.Descriptor{
				MediaType: types.OCIManifestSchema1, Platform: &v1.Platform{OS: "linux", Architecture: image.arch},
			},
		})
	}
	return mutate.Annotations(index, b.labels()).(v1.ImageIndex)
}

// write replaces the layout, the archives and the SBOMs in a directory.
func write(dir, version string, index v1.ImageIndex, images []platformImage) error {
	oci := filepath.Join(dir, "oci")
	if err := os.RemoveAll(oci); err != nil {
		return err
	}
	path, err := layout.Write(oci, empty.Index)
	if err != nil {
		return err
	}
	tag := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": version})
	if err := path.AppendIndex(index, tag); err != nil {
		return err
	}
	for _, image := range images {
		base := filepath.Join(dir, fileName(image.arch))
		if err := os.WriteFile(base+sbomSuffix, image.sbom, 0o644); err != nil {
			return err
		}
		name, err := name.NewTag(repository + ":" + version)
		if err != nil {
			return fmt.Errorf("--version: %w", err)
		}
		if err := tarball.WriteToFile(base+".tar", name, image.Image); err != nil {
			return err
		}
	}
	return nil
}
