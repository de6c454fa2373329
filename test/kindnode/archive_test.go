package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestImageArchive_ImagesShareALayer(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "images.tar")
	archive, err := newImageArchive(file, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	layer, err := archive.addLayer(func(l *layer) error {
		return errors.Join(l.file(program, "usr/bin/program"), l.symlink("program", "usr/bin/other"))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"program", "other"} {
		if err := archive.addImage("example.com/"+name+":v1", layer, imageConfig{Entrypoint: []string{name}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.close(); err != nil {
		t.Fatal(err)
	}

	files := readTar(t, file)
	if len(files) != 4 { // A layer, two configurations and the list.
		t.Errorf("got %d files, want 4", len(files))
	}
	content := files[layer.file()]
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != string(layer) {
		t.Error("the name of the layer is not its digest")
	}
	var images []archivedImage
	if err := json.Unmarshal(files["manifest.json"], &images); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"program", "other"} {
		if !slices.Equal(images[i].RepoTags, []string{"example.com/" + name + ":v1"}) ||
			!slices.Equal(images[i].Layers, []string{layer.file()}) || files[images[i].Config] == nil {
			t.Errorf("got image %+v for %s", images[i], name)
		}
	}
	want := []string{"usr/", "usr/bin/", "usr/bin/program", "usr/bin/other"}
	if got := tarNames(t, content); !slices.Equal(got, want) {
		t.Errorf("got files %q in the layer, want %q", got, want)
	}
}

func TestHashInputs_DependsOnFilesToolchainAndArchitecture(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hash := func(goVersion, arch string) string {
		t.Helper()
		sum, err := hashInputs(dir, goVersion, arch)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	write("file", "a")
	first := hash("go1", "amd64")
	write("x_test.go", "package x")
	if hash("go1", "amd64") != first {
		t.Error("a test file changes the hash")
	}
	if hash("go2", "amd64") == first || hash("go1", "arm64") == first {
		t.Error("the toolchain or the architecture does not change the hash")
	}
	write("file", "b")
	if hash("go1", "amd64") == first {
		t.Error("the content of a file does not change the hash")
	}
}

func readTar(t *testing.T, file string) map[string][]byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for reader := tar.NewReader(bytes.NewReader(content)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
	}
}

func tarNames(t *testing.T, content []byte) []string {
	t.Helper()
	var names []string
	for reader := tar.NewReader(bytes.NewReader(content)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
	}
}
