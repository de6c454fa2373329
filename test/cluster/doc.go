// Package cluster starts, stops and disrupts a real Kubernetes control plane for tests and demonstrations. It runs the
// binary of test/controlplane, which "make controlplane" builds, and connects to it like any other client. If
// KUBEBUILDER_ASSETS names a folder with etcd and kube-apiserver, the cluster consists of these programs.
//
// The tests in a package can share one cluster:
//
//	var shared = cluster.NewShared(cluster.Options{})
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }
//
//	func TestWidgets(t *testing.T) { c := shared.Cluster(t); ... }
//
// The cluster is started by the first test that requests it. With a Pool, parallel tests have clusters of their own. If
// TEST_KUBECONFIG is set, the tests run on the cluster of that kubeconfig instead.
//
// The package guarantees the following:
//
//   - If Start fails, the error contains the output of the binary. Start stops waiting when its context is cancelled.
//   - After Stop, no process, goroutine, connection or temporary directory is left. If the process that started the
//     cluster is killed, the cluster's processes exit within about two seconds.
//   - A server that was killed can be restarted on the same port with the same data.
//
// No Pods run in the cluster, and only the controllers enabled in Options are active. The package requires Linux or
// another Unix.
package cluster
