// Package e2e tests several replicas, which run as separate processes. It injects faults into the replicas and their
// API server. There are two kinds of replicas.
//
// Replicas of the engine verify the promises of package replica: L1 to L3 with one leader, and H2 to H6 and H9 with
// shards. Package history checks the recorded events. Each of them is a separate process of the test binary. All
// replicas append events to one log: handler calls, writes before and after the fence, and requests for leases. The
// test changes objects continuously. It adds these changes, the injected faults and the events from its own watches to
// the log.
//
// With one leader, three replicas serve one type. The engine's watches run on every replica, and its workers run only
// on the leader. With shards, three to five replicas serve twelve types in eight shards, and faults are injected into
// the leader of a shard, the leader of the fleet, or a replica that keeps a shard warm. Some faults need a moment that
// the test cannot observe in time, such as the one between the last handler call of a shard and its release. A replica
// then stops or kills itself when it reaches a trap that the test has set.
//
// Replicas of the platform serve a Blueprint with collections, references to existing objects and status fields, and
// the webhook for Blueprints. The test changes the lists, the existing objects and the children continuously, applies
// valid and invalid Blueprints, and then checks all objects.
//
// Each replica connects to the API server through its own proxy, which the test can stall or reset.
//
// The following command runs a hundred rounds of random faults with one leader, with shards and with the platform:
//
//	go test -C test ./e2e -run Rounds -rounds 100 -seed 7
//
// The faults of a round, and the order of its changes, depend only on the seed and the round's number, so that "-seed 7
// -from 42 -rounds 1" repeats the faults of round 42. The number of changes also depends on the time that the faults
// take. With -artifacts, the logs are preserved. With -fence-on-server, the API server rejects the late writes of the
// engine's replicas; see package serverfence. Without it, late writes are counted by their reasons.
//
// The tests always start their own cluster and ignore TEST_KUBECONFIG, because they disrupt the cluster.
package e2e
