package kind

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"

	"github.com/dynamic-controller/engine/test/cluster"
)

// shared is the cluster of the tests. It has controllers, which set the rules of the aggregated role.
var shared = cluster.NewShared(cluster.Options{WithControllers: true})

// binaries is the directory that contains the programs. TestMain sets it.
var binaries string

// root is the root of the repository.
const root = "../.."

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(built{m})) }

// built builds the programs and then runs the tests.
type built struct{ tests *testing.M }

func (b built) Run() int {
	dir, err := os.MkdirTemp("", "kind-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
	for _, program := range []string{"../demo", "../../cmd/dynamic-controller"} { // in two modules
		build := exec.Command("go", "build", "-C", program, "-o", dir, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as in the image
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", program, err, out)
			return 1
		}
	}
	return b.tests.Run()
}
