package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A sysroot is the root directory of a Linux system. Its methods take absolute paths within that system.
type sysroot string

// path returns the path of a file on this machine. It resolves absolute symbolic links relative to the sysroot. The
// kernel follows relative links in parent directories, such as Debian's /lib.
func (s sysroot) path(file string) string {
	for range 10 { // Longer chains of links do not occur.
		there := filepath.Join(string(s), file)
		target, err := os.Readlink(there)
		if err != nil {
			return there
		}
		if !path.IsAbs(target) {
			target = path.Join(path.Dir(file), target)
		}
		file = target
	}
	return filepath.Join(string(s), file)
}

func (s sysroot) glob(pattern string) ([]string, error) {
	matches, err := filepath.Glob(filepath.Join(string(s), pattern))
	for i, match := range matches {
		matches[i] = strings.TrimPrefix(match, string(s))
	}
	return matches, err
}

// closure returns the given files and all libraries and loaders that they depend on.
func (s sysroot) closure(files []string) ([]string, error) {
	dirs, err := s.glob("/usr/lib/*-linux-gnu")
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for queue := files; len(queue) > 0; {
		file := queue[0]
		queue = queue[1:]
		if found[file] {
			continue
		}
		found[file] = true
		needed, err := s.needed(file, dirs)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		queue = append(queue, needed...)
	}
	all := make([]string, 0, len(found))
	for file := range found {
		all = append(all, file)
	}
	slices.Sort(all)
	return all, nil
}

// needed returns the loader and the libraries that a file directly depends on.
func (s sysroot) needed(file string, dirs []string) ([]string, error) {
	binary, err := elf.Open(s.path(file))
	if err != nil {
		return nil, err
	}
	defer binary.Close()
	libraries, err := binary.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	var needed []string
	for _, library := range libraries {
		found, err := s.library(library, dirs)
		if err != nil {
			return nil, err
		}
		needed = append(needed, found)
	}
	if interpreter := binary.Section(".interp"); interpreter != nil {
		loader, err := interpreter.Data()
		if err != nil {
			return nil, err
		}
		needed = append(needed, strings.TrimRight(string(loader), "\x00"))
	}
	return needed, nil
}

func (s sysroot) library(name string, dirs []string) (string, error) {
	for _, dir := range dirs {
		file := path.Join(dir, name)
		_, err := os.Stat(s.path(file))
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("library %s not found in %s", name, strings.Join(dirs, ", "))
}
