package onserver

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/dynamic-controller/engine/test/cluster"
)

var shared = cluster.NewShared(cluster.Options{})

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }
