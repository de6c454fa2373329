package install

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"github.com/dynamic-controller/engine/test/cluster"
)

var update = flag.Bool("update", false, "update the manifests for kustomize")

// shared is the cluster of the tests. Its controllers set the rules of the aggregated role and delete namespaces.
var shared = cluster.NewShared(cluster.Options{WithControllers: true})

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }
