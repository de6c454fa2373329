package docs

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dynamic-controller/engine/test/cluster"
)

// root is the folder of the repository.
const root = "../.."

const (
	// timeout limits waits for conditions that normally take a few seconds.
	timeout = time.Minute
	// commandTimeout limits commands. It is longer than the timeouts in the documentation.
	commandTimeout = 3 * time.Minute
)

// shared is the cluster of the tests. Its controllers set the rules of the aggregated role, and delete namespaces and
// owned objects.
var shared = cluster.NewShared(cluster.Options{WithControllers: true})

func TestMain(m *testing.M) {
	_ = os.Unsetenv("TEST_KUBECONFIG") // An external cluster has controllers, which the tests replace.
	_ = flag.Set("test.parallel", "4") // The tests mostly wait. The -parallel flag overrides this.
	goleak.VerifyTestMain(shared.Main(withPrograms{m}))
}

// programs is a folder with kubectl, helm and dynamic-controller, which is also a kubectl plugin.
var programs string

// withPrograms builds the programs before the tests, and removes them afterwards.
type withPrograms struct{ m *testing.M }

func (w withPrograms) Run() int {
	code, err := 0, error(nil)
	if programs, err = os.MkdirTemp("", "docs-"); err == nil {
		err = build(programs)
	}
	if err == nil {
		code = w.m.Run()
	}
	if err := errors.Join(err, os.RemoveAll(programs)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

func build(dir string) error {
	platform := filepath.Join(root, "cmd", "dynamic-controller")
	for module, packages := range map[string][]string{".": {"./kubectl", "./helm"}, platform: {"."}} {
		cmd := exec.Command("go", append([]string{"build", "-ldflags", "-s -w", "-o", dir}, packages...)...)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", packages, err, out)
		}
	}
	return os.Symlink("dynamic-controller", filepath.Join(dir, "kubectl-blueprint"))
}

// environment returns the environment of a command, with the programs first in PATH.
func environment(t *testing.T, kubeconfig string) []string {
	t.Helper()
	path := programs + string(filepath.ListSeparator) + os.Getenv("PATH")
	return []string{"PATH=" + path, "HOME=" + t.TempDir(), "KUBECONFIG=" + kubeconfig}
}
