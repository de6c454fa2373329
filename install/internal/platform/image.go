package platform

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	binaryPath = Name
	sbomPath   = "sbom" + SBOMSuffix
)

// Image is the image for one architecture.
type Image struct {
	v1.Image
	Arch string
	SBOM []byte
}

// NewImage returns an image that contains a binary and its SBOM.
func (b Build) NewImage(binary, arch string) (Image, error) {
	none := Image{}
	sbom, err := NewSBOM(binary, b.Version)
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
		History: v1.History{Created: v1.Time{Time: b.Date}, CreatedBy: "make image"},
	})
	if err != nil {
		return none, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return none, err
	}
	image, err = mutate.ConfigFile(image, b.configure(config.DeepCopy(), arch))
	return Image{Image: image, Arch: arch, SBOM: sbom}, err
}

// configure completes the configuration of an image for an architecture.
func (b Build) configure(config *v1.ConfigFile, arch string) *v1.ConfigFile {
	config.OS, config.Architecture = "linux", arch
	config.Created = v1.Time{Time: b.Date}
	config.Config = v1.Config{
		Entrypoint: []string{"/" + binaryPath}, User: "65532:65532", Labels: b.labels(),
	}
	return config
}

// labels returns the annotations of the index and the labels of each image.
func (b Build) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    Name,
		"org.opencontainers.image.version":  b.Version,
		"org.opencontainers.image.revision": b.Commit,
		"org.opencontainers.image.created":  b.Date.Format(time.RFC3339),
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
func (b Build) archive(files []file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.path, Mode: f.mode, Size: int64(len(f.content)), ModTime: b.Date,
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

// NewIndex returns an index of images for several architectures.
func (b Build) NewIndex(images []Image) v1.ImageIndex {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image.Image,
			Descriptor: v1.Descriptor{
				MediaType: types.OCIManifestSchema1, Platform: &v1.Platform{OS: "linux", Architecture: image.Arch},
			},
		})
	}
	return mutate.Annotations(index, b.labels()).(v1.ImageIndex)
}

// WriteLayout replaces an OCI image layout that contains the index under the version as its name.
func (b Build) WriteLayout(dir string, index v1.ImageIndex) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	tag := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": b.Version})
	return path.AppendIndex(index, tag)
}

// Push pushes an image to a tag with the credentials of docker login.
func Push(ctx context.Context, to string, index v1.ImageIndex) error {
	tag, err := name.NewTag(to, name.StrictValidation)
	if err != nil {
		return err
	}
	err = remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return fmt.Errorf("push to %s: %w", tag, err)
	}
	return nil
}
