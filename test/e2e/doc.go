// Package e2e tests several replicas, which run as separate processes. It injects faults into the replicas and their
// API server. The tests verify promises L1 to L3 of package replica. Package history checks the recorded events.
//
// Each replica is another process of the test binary. The engine's watches run on every replica, and its workers run
// only on the leader. Each replica connects to the API server through its own proxy, which the test can stall or reset.
// All replicas append events to one log: handler calls, writes before and after the fence, and requests for the lease.
// The test changes objects continuously. It adds these changes, the injected faults and the events of its own watches
// to the log.
//
// The following command runs a hundred rounds of random faults:
//
//	go test ./test/e2e -run Rounds -rounds 100 -seed 7
//
// The faults of a round depend only on the seed and the round's number, so "-seed 7 -from 42 -rounds 1" injects the
// faults of round 42 again. With -artifacts, the logs are preserved.
//
// The tests always start their own cluster and ignore TEST_KUBECONFIG, because they disrupt the cluster.
package e2e
