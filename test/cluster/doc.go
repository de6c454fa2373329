// Package cluster starts, breaks and restarts a real Kubernetes control plane for tests and demonstrations: it runs the
// binary of test/controlplane, which "make controlplane" builds, and talks to it as any client would.
//
// A package of tests that can do with one cluster shares it:
//
//	var shared = cluster.NewShared(cluster.Options{})
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }
//
//	func TestIt(t *testing.T) { c := shared.Cluster(t); ... }
//
// It starts with the first test that asks for it. With TEST_KUBECONFIG set, the tests run against the cluster of that
// kubeconfig instead.
//
// What it promises:
//
//   - A start that fails is an error with the binary's own words, and never hangs longer than its ctx.
//   - After Stop no process, goroutine, connection or temporary directory of it is left. When the process that started
//     it is killed, its processes end within a second or two.
//   - A server that was killed comes back on the same port with the same data.
//
// What it does not: nothing runs Pods, and only the controllers that Options names do their work. It needs Linux or
// another Unix.
package cluster
