package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// dir is the directory in which one control plane keeps everything.
type dir string

// openDir makes the directory if need be. Its path is absolute, so that what is printed can be pasted anywhere.
func openDir(path string) (dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("directory %s: %w", path, err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return "", fmt.Errorf("directory %s cannot be made: %w", abs, err)
	}
	return dir(abs), nil
}

func (d dir) path(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

func (d dir) kubeconfig() string { return d.path("kubeconfig") }

func (d dir) pidFile(part string) string { return d.path(part + ".pid") }

func (d dir) logFile(part string) string { return d.path(part + ".log") }

func (d dir) empty() (bool, error) {
	entries, err := os.ReadDir(string(d))
	return len(entries) == 0, err
}

// logTail returns the last lines of a part's log, indented, for the end of an error; of a panic the first.
func (d dir) logTail(part string) string {
	const most = 10
	const indent = "    "
	data, err := os.ReadFile(d.logFile(part))
	if err != nil {
		return indent + err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	panicked := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "panic: ") })
	if panicked >= 0 {
		lines = lines[panicked:]
		lines = lines[:min(most, len(lines))]
	}
	return indent + strings.Join(lines[max(0, len(lines)-most):], "\n"+indent)
}

// writeWhole puts data at path in one step: a process killed meanwhile leaves the old content or the new.
func writeWhole(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it was renamed
	if _, err := f.Write(data); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
