package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"
)

// An imageArchive is a file in the format of "docker save". It contains layers, a configuration for each image, and a
// list of images. Images can share layers. The content of the file does not depend on when it is written.
type imageArchive struct {
	arch   string
	file   *os.File
	tar    *tar.Writer
	images []archivedImage
}

type archivedImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// A layerID is the digest of an uncompressed layer.
type layerID string

func (id layerID) file() string { return string(id) + ".tar" }

func newImageArchive(file, arch string) (*imageArchive, error) {
	out, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	return &imageArchive{arch: arch, file: out, tar: tar.NewWriter(out)}, nil
}

// addLayer adds a layer. The fill function writes the layer's files.
func (a *imageArchive) addLayer(fill func(*layer) error) (layerID, error) {
	return a.addTar(func(out io.Writer) error {
		l := &layer{tar: tar.NewWriter(out), made: map[string]bool{".": true}}
		if err := fill(l); err != nil {
			return err
		}
		return l.tar.Close()
	})
}

// addTar adds a layer. The write function writes the layer's tar archive.
func (a *imageArchive) addTar(write func(io.Writer) error) (layerID, error) {
	file, err := os.CreateTemp(filepath.Dir(a.file.Name()), "layer-")
	if err != nil {
		return "", err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	sum := sha256.New()
	if err := write(io.MultiWriter(file, sum)); err != nil {
		return "", err
	}
	size, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return "", err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	id := layerID(hex.EncodeToString(sum.Sum(nil)))
	return id, a.add(id.file(), size, file)
}

// An imageConfig configures the containers of an image.
type imageConfig struct {
	Entrypoint []string
	Env        []string
	Labels     map[string]string `json:",omitempty"`
	StopSignal string            `json:",omitempty"`
}

// addImage adds an image that consists of one layer.
func (a *imageArchive) addImage(name string, layer layerID, run imageConfig) error {
	run.Env = append(run.Env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	config, err := json.Marshal(map[string]any{
		"architecture": a.arch,
		"os":           "linux",
		"created":      time.Unix(0, 0).UTC(),
		"config":       run,
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + string(layer)}},
	})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(config)
	image := archivedImage{hex.EncodeToString(sum[:]) + ".json", []string{name}, []string{layer.file()}}
	a.images = append(a.images, image)
	return a.add(image.Config, int64(len(config)), bytes.NewReader(config))
}

func (a *imageArchive) add(name string, size int64, content io.Reader) error {
	const readable = 0o644
	if err := a.tar.WriteHeader(&tar.Header{Name: name, Mode: readable, Size: size, Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err := io.Copy(a.tar, content)
	return err
}

// close completes the archive.
func (a *imageArchive) close() error {
	manifest, err := json.Marshal(a.images)
	if err != nil {
		return err
	}
	if err := a.add("manifest.json", int64(len(manifest)), bytes.NewReader(manifest)); err != nil {
		return err
	}
	if err := a.tar.Close(); err != nil {
		return err
	}
	return a.file.Close()
}

// discard closes the file of an incomplete archive. It has no effect after close.
func (a *imageArchive) discard() { a.file.Close() }

// A layer is the file system of an image. All files belong to root.
type layer struct {
	tar  *tar.Writer
	made map[string]bool // Directories that have been added.
}

// file adds a file from this machine and keeps its permissions. It follows symbolic links.
func (l *layer) file(from, to string) error {
	content, err := os.Open(from)
	if err != nil {
		return err
	}
	defer content.Close()
	info, err := content.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", from)
	}
	if err := l.directory(path.Dir(to)); err != nil {
		return err
	}
	header := &tar.Header{Name: to, Mode: int64(info.Mode().Perm()), Size: info.Size(), Format: tar.FormatPAX}
	if err := l.tar.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(l.tar, content)
	return err
}

func (l *layer) symlink(target, to string) error {
	if err := l.directory(path.Dir(to)); err != nil {
		return err
	}
	return l.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeSymlink, Name: to, Linkname: target, Mode: 0o777, Format: tar.FormatPAX,
	})
}

// directory adds a directory and its parents unless they have been added before.
func (l *layer) directory(name string) error {
	if l.made[name] {
		return nil
	}
	if err := l.directory(path.Dir(name)); err != nil {
		return err
	}
	l.made[name] = true
	const executable = 0o755
	return l.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeDir, Name: name + "/", Mode: executable, Format: tar.FormatPAX,
	})
}
