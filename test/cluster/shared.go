package cluster

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"
)

// Shared is one cluster for all tests of a package: the one of TEST_KUBECONFIG if that is set, else one that the first
// test to ask for it starts.
type Shared struct {
	options Options

	once    sync.Once
	cluster *Cluster
	err     error
}

// NewShared starts nothing.
func NewShared(options Options) *Shared { return &Shared{options: options} }

// TB is what Cluster needs of a testing.TB.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Cluster returns the cluster, or ends the test if it cannot be started.
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
	const tooLong = time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), tooLong)
	defer cancel()
	s.cluster, s.err = Start(ctx, s.options)
}

// Runner is a *testing.M, or what stands before it.
type Runner interface{ Run() int }

// Main returns m with the cluster's end after it, for TestMain: os.Exit(shared.Main(m).Run()), or
// goleak.VerifyTestMain(shared.Main(m)), which then sees only what the tests have left.
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
	// If no test has asked for the cluster, none may from now on.
	s.once.Do(func() { s.err = fmt.Errorf("the tests have ended") })
	if s.cluster == nil {
		return nil
	}
	return s.cluster.Stop()
}
