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
	assetsEnv     = "KUBEBUILDER_ASSETS"
	kubeconfigEnv = "TEST_KUBECONFIG"

	module = "github.com/dynamic-controller/engine"
)

// ErrNoBinary is returned by Start if the control plane has not been built.
var ErrNoBinary = errors.New("control plane binary not found: run make controlplane first")

// binary returns the path of the control plane binary. The path is the value of CONTROLPLANE_BIN. It defaults to
// bin/controlplane in the repository or, if KUBEBUILDER_ASSETS names a folder with etcd and kube-apiserver, to
// bin/controlplane-launcher, which runs these programs.
func binary() (string, error) {
	path := os.Getenv(binaryEnv)
	if path == "" {
		name := "controlplane"
		if folder := os.Getenv(assetsEnv); folder != "" {
			if err := checkAssets(folder); err != nil {
				return "", err
			}
			name = "controlplane-launcher"
		}
		root, err := repositoryRoot()
		if err != nil {
			return "", err
		}
		path = filepath.Join(root, "bin", name)
	}
	switch _, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%w (%s)", ErrNoBinary, path)
	case err != nil:
		return "", fmt.Errorf("control plane binary: %w", err)
	}
	return filepath.Abs(path)
}

// checkAssets returns an error unless the folder contains etcd and kube-apiserver.
func checkAssets(folder string) error {
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			return fmt.Errorf("%s: %w: install it there, or unset the variable to use the control plane that "+
				"make controlplane builds", assetsEnv, err)
		}
	}
	return nil
}

// repositoryRoot returns the directory of the library's module, which contains all other modules. It searches the
// working directory and its parents. In a test, the working directory is the directory of the test's package.
func repositoryRoot() (string, error) {
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
