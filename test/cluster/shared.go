package cluster

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"
)

// Shared is a cluster for all tests in a package. If TEST_KUBECONFIG is set, it is the external cluster of that
// kubeconfig. Otherwise, the first test that calls Cluster starts one.
type Shared struct {
	options Options

	once    sync.Once
	cluster *Cluster
	err     error
}

// NewShared returns a Shared whose cluster will be started with the given options. It does not start the cluster.
func NewShared(options Options) *Shared { return &Shared{options: options} }

// TB is the subset of testing.TB that Shared.Cluster uses.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Cluster returns the cluster. If the cluster cannot be started, Cluster fails the test.
func (s *Shared) Cluster(t TB) *Cluster {
	t.Helper()
	s.once.Do(s.start)
	if s.err != nil {
		t.Fatalf("%v", s.err)
	}
	return s.cluster
}

func (s *Shared) start() {
	if kubeconfig := os.Getenv(kubeconfigEnv); kubeconfig != "" {
		s.cluster, s.err = Connect(kubeconfig)
		return
	}
	const startTimeout = 4 * time.Minute // more than the ready-timeout of controlplane, which reports what is missing
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	s.cluster, s.err = Start(ctx, s.options)
}

// Runner runs tests and returns an exit code. *testing.M implements it.
type Runner interface{ Run() int }

// Main returns a Runner that runs m and then stops the cluster. TestMain can call os.Exit(shared.Main(m).Run()), or
// goleak.VerifyTestMain(shared.Main(m)), which checks for leaks after the cluster has been stopped.
func (s *Shared) Main(m Runner) Runner { return &sharedMain{shared: s, tests: m} }

type sharedMain struct {
	shared *Shared
	tests  Runner
}

func (m *sharedMain) Run() int {
	code := m.tests.Run()
	if err := m.shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

func (s *Shared) stop() error {
	// If the cluster has not been started yet, prevent a late start.
	s.once.Do(func() { s.err = fmt.Errorf("the tests have finished") })
	if s.cluster == nil {
		return nil
	}
	return s.cluster.Stop()
}
