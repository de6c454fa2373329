package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// dir is the directory that contains all files of one control plane.
type dir string

// openDir creates the directory if it does not exist. The returned path is absolute, so that printed commands work in
// any directory.
func openDir(path string) (dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("directory %s: %w", path, err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return "", fmt.Errorf("create directory: %w", err)
	}
	return dir(abs), nil
}

func (d dir) path(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

func (d dir) kubeconfig() string { return d.path("kubeconfig") }

func (d dir) pidFile(component string) string { return d.path(component + ".pid") }

func (d dir) logFile(component string) string { return d.path(component + ".log") }

func (d dir) empty() (bool, error) {
	entries, err := os.ReadDir(string(d))
	return len(entries) == 0, err
}

// logTail returns the last lines of a component's log, indented for use in an error message. If the log contains a
// panic, logTail returns the first lines of the panic instead.
func (d dir) logTail(component string) string {
	const maxLines = 10
	const indent = "    "
	data, err := os.ReadFile(d.logFile(component))
	if err != nil {
		return indent + err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	panicked := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "panic: ") })
	if panicked >= 0 {
		lines = lines[panicked:]
		lines = lines[:min(maxLines, len(lines))]
	}
	return indent + strings.Join(lines[max(0, len(lines)-maxLines):], "\n"+indent)
}

// writeFileAtomically replaces the file at path. Even if the process is killed, the file contains either the old or the
// new content.
func writeFileAtomically(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*") // CreateTemp uses mode 0600.
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // Fails after the file has been renamed.
	if _, err := f.Write(data); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
