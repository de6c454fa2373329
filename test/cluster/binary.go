package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	binaryEnv     = "CONTROLPLANE_BIN"
	kubeconfigEnv = "TEST_KUBECONFIG"

	module = "github.com/dynamic-controller/engine"
)

// ErrNoBinary is returned by Start when the control plane was not built.
var ErrNoBinary = errors.New("there is no control plane binary: run make controlplane first")

// binary returns what CONTROLPLANE_BIN names, else bin/controlplane of this module.
func binary() (string, error) {
	path := os.Getenv(binaryEnv)
	if path == "" {
		root, err := moduleRoot()
		if err != nil {
			return "", err
		}
		path = filepath.Join(root, "bin", "controlplane")
	}
	switch _, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%w (%s)", ErrNoBinary, path)
	case err != nil:
		return "", fmt.Errorf("control plane binary: %w", err)
	}
	return filepath.Abs(path)
}

// moduleRoot walks up from the working directory, which for a test is that of its package, past nested modules.
func moduleRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && slices.Contains(strings.Split(string(data), "\n"), "module "+module) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not in module %s: set %s to a control plane binary", start, module, binaryEnv)
		}
	}
}
