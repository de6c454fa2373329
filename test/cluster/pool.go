package cluster

import "os"

// Pool is a set of clusters for the parallel tests in a package. Each test has a cluster of its own while it runs, so
// that tests can run programs that act on the whole cluster. If TEST_KUBECONFIG is set, the pool contains only the
// external cluster of that kubeconfig.
type Pool struct {
	members []*Shared
	free    chan *Shared
}

// NewPool returns a pool of at most size clusters, which will be started with the given options. Each of them is
// started by the first test that takes it.
func NewPool(size int, options Options) *Pool {
	if os.Getenv(kubeconfigEnv) != "" {
		size = 1
	}
	p := &Pool{free: make(chan *Shared, size)}
	for range size {
		s := NewShared(options)
		p.members = append(p.members, s)
		p.free <- s
	}
	return p
}

// CleanupTB is the subset of testing.TB that Pool.Take uses.
type CleanupTB interface {
	TB
	Cleanup(func())
}

// Take waits until a cluster is free, and returns it. No other test can take the cluster until the test ends, which
// includes the cleanup functions that the test registers after the call. A test must not take a second cluster. If the
// cluster cannot be started, Take fails the test.
func (p *Pool) Take(t CleanupTB) *Cluster {
	t.Helper()
	s := <-p.free
	t.Cleanup(func() { p.free <- s })
	return s.Cluster(t)
}

// Main returns a Runner that runs m and then stops the clusters, like Shared.Main.
func (p *Pool) Main(m Runner) Runner {
	for _, s := range p.members {
		m = s.Main(m)
	}
	return m
}
