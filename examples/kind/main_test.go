package kind

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/dynamic-controller/engine/test/cluster"
)

// The controllers fill in the rules of the aggregated role.
var shared = cluster.NewShared(cluster.Options{WithControllers: true})

// binaries is where the programs are, built by TestMain.
var binaries string

// root is the top of the repository.
const root = "../.."

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(built{m})) }

// built builds the programs around the tests.
type built struct{ tests *testing.M }

func (b built) Run() int {
	dir, err := os.MkdirTemp("", "kind-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
	build := exec.Command("go", "build", "-o", dir, "./examples/demo", "./cmd/dynamic-controller")
	build.Dir = filepath.FromSlash(root)
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the programs: %v\n%s", err, out)
		return 1
	}
	return b.tests.Run()
}
