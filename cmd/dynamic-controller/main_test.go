package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/dynamic-controller/engine/test/cluster"
)

// parallel is the number of cluster tests that run concurrently. They spend most of their time waiting.
const parallel = 3

// clusters provides a cluster for each running test, because a platform serves all Blueprints in a cluster.
var clusters = cluster.NewPool(parallel, cluster.Options{WithControllers: true})

// taken contains the clusters of the running tests by *testing.T.
var taken sync.Map

// takeCluster makes the test run in parallel with others and returns its cluster.
func takeCluster(t *testing.T) *cluster.Cluster {
	t.Helper()
	t.Parallel()
	c := clusters.Take(t)
	taken.Store(t, c)
	t.Cleanup(func() { taken.Delete(t) })
	return c
}

// binary is the path of the program. TestMain builds it.
var binary string

func TestMain(m *testing.M) {
	if os.Getenv(waitForSignalsEnv) != "" {
		waitForSignals()
		return
	}
	_ = flag.Set("test.parallel", strconv.Itoa(parallel)) // the -parallel flag overrides this
	goleak.VerifyTestMain(clusters.Main(built{m}))
}

// built builds the program before running the tests.
type built struct{ tests *testing.M }

func (b built) Run() int {
	dir, err := os.MkdirTemp("", "dynamic-controller-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "dynamic-controller")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as in the container image
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the binary: %v\n%s", err, out)
		return 1
	}
	return b.tests.Run()
}
