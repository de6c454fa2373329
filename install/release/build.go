package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dynamic-controller/engine/install/internal/platform"
)

// builder builds a release.
type builder struct {
	source
	targets               []platform.Target
	repository, builderID string
	key                   *ecdsa.PrivateKey // nil if the release is not signed
	log                   io.Writer

	artifacts []artifact
	image     v1.Hash // the digest of the image
}

// artifact is a file of the release.
type artifact struct {
	name, digest string // the digest is the SHA-256 in hexadecimal
	binary       binary
}

// binary describes the binary in an archive. It is empty if the artifact is not an archive with a binary.
type binary struct {
	platform.Target
	path string // in the archive
}

// build builds a release in a temporary directory next to the output, and then replaces the output.
func (b *builder) build(ctx context.Context, output string) error {
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(output), ".partial-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if err := b.buildIn(ctx, dir); err != nil {
		return err
	}
	if err := os.RemoveAll(output); err != nil {
		return err
	}
	if err := os.Rename(dir, output); err != nil {
		return err
	}
	fmt.Fprintf(b.log, "%s contains the release %s of %s, and the image %s\n", output, b.version, b.commit, b.image)
	if b.key == nil {
		fmt.Fprintln(b.log, "the release is not signed, because no key is set")
	}
	return nil
}

func (b *builder) buildIn(ctx context.Context, dir string) error {
	work, err := os.MkdirTemp("", "release-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	built := platform.Build{Version: b.version, Commit: b.commit, Date: b.date}
	images, modules, err := b.compile(ctx, built, work, dir)
	if err != nil {
		return err
	}
	steps := []func() error{
		func() error { return b.writeImage(built, images, filepath.Join(work, "oci"), dir) },
		func() error { return b.writeChart(dir) },
		func() error { return b.writeManifests(work, dir) },
		func() error { return b.writeKrew(dir) },
		func() error { return b.writeNotes(dir) },
		func() error { return b.writeChecksums(dir) },
		func() error { return b.writeProvenance(modules, dir) },
		func() error { return b.sign(dir) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// compile writes an archive and an SBOM for each target. It returns the images for the targets that have one, and the
// modules in the binaries.
func (b *builder) compile(ctx context.Context, built platform.Build, work, dir string) (images []platform.Image,
	modules []platform.Module, err error) {
	license, err := os.ReadFile(filepath.Join(b.dir, "LICENSE"))
	if err != nil {
		return nil, nil, err
	}
	for i, target := range b.targets {
		fmt.Fprintf(b.log, "[%d/%d] building the binary for %s\n", i+1, len(b.targets), target)
		path := filepath.Join(work, target.OS+"-"+target.Arch)
		if err := built.Compile(ctx, b.dir, target, path, b.log); err != nil {
			return nil, nil, err
		}
		if err := b.writeBinary(dir, target, path, license); err != nil {
			return nil, nil, err
		}
		if modules, err = platform.AppendModules(modules, path, b.version); err != nil {
			return nil, nil, err
		}
		if target.OS != "linux" {
			continue
		}
		image, err := built.NewImage(path, target.Arch)
		if err != nil {
			return nil, nil, fmt.Errorf("image for %s: %w", target, err)
		}
		images = append(images, image)
	}
	return images, modules, nil
}

// writeBinary writes an archive with a binary, and its SBOM.
func (b *builder) writeBinary(dir string, target platform.Target, path string, license []byte) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	sbom, err := platform.NewSBOM(path, b.version)
	if err != nil {
		return err
	}
	name, suffix := platform.Name, ".tar.gz"
	if target.OS == "windows" {
		name, suffix = name+".exe", ".zip"
	}
	files := []file{{"LICENSE", 0o644, license}, {name, 0o755, content}}
	archive, err := zipped(files, b.date)
	if target.OS != "windows" {
		if archive, err = tarball(files, b.date); err == nil {
			archive, err = compress(archive)
		}
	}
	if err != nil {
		return err
	}
	base := b.fileName(target.OS + "_" + target.Arch)
	if err := b.write(dir, base+suffix, archive, binary{target, name}); err != nil {
		return err
	}
	return b.write(dir, base+platform.SBOMSuffix, sbom, binary{})
}

// fileName returns the name of a file of the release without its suffix.
func (b *builder) fileName(part string) string { return platform.Name + "_" + b.version + "_" + part }

// write writes a file of the release.
func (b *builder) write(dir, name string, content []byte, of binary) error {
	digest := sha256.Sum256(content)
	b.artifacts = append(b.artifacts, artifact{name, hex.EncodeToString(digest[:]), of})
	return os.WriteFile(filepath.Join(dir, name), content, 0o644)
}

// writeImage writes the image as an OCI archive.
func (b *builder) writeImage(built platform.Build, images []platform.Image, work, dir string) error {
	index := built.NewIndex(images)
	if err := built.WriteLayout(work, index); err != nil {
		return err
	}
	var err error
	if b.image, err = index.Digest(); err != nil {
		return err
	}
	files, err := readFiles(work)
	if err != nil {
		return err
	}
	archive, err := tarball(files, b.date)
	if err != nil {
		return err
	}
	return b.write(dir, b.fileName("image")+".tar", archive, binary{})
}

// relativeLink matches the target of a link to a file of the repository.
var relativeLink = regexp.MustCompile(`\]\(([^():#]+)([#)])`)

// writeNotes writes the section of CHANGELOG.md. Its links refer to the files of the release.
func (b *builder) writeNotes(dir string) error {
	url := fmt.Sprintf("](https://%s/blob/%s/$1$2", b.module, b.version)
	return b.write(dir, "release-notes.txt", []byte(relativeLink.ReplaceAllString(b.changes.text, url)), binary{})
}

// writeChecksums writes SHA256SUMS in the format of sha256sum.
func (b *builder) writeChecksums(dir string) error {
	return os.WriteFile(filepath.Join(dir, checksumsFile), b.checksums(), 0o644)
}

func (b *builder) checksums() []byte {
	var out bytes.Buffer
	for _, a := range b.artifacts {
		fmt.Fprintf(&out, "%s  %s\n", a.digest, a.name)
	}
	return out.Bytes()
}

// number returns the version without v.
func (b *builder) number() string { return strings.TrimPrefix(b.version, "v") }
