// Package e2e breaks several real replicas and their API server in every way that the engine promises to survive (L1 to L3
// in doc.go of packages dynamiccontroller and replica), and has package history look at what came of it.
//
// The test binary starts itself again as a replica: an engine whose watches run on each of them, and whose workers run on
// the one that leads. Each replica reaches the API server through a proxy of its own, which the test stalls or resets. All
// of them write what they do to one log: handlers, writes before and after the fence, requests for the lease. So does the
// test: what it changed and broke, and what a watch of its own saw. Objects are changed all the while.
//
//	go test ./test/e2e -run Rounds -rounds 100 -seed 7
//
// runs a hundred rounds of random faults; every round is drawn from the seed and its number alone, so that
// "-seed 7 -from 42 -rounds 1" strikes as round 42 did. With -artifacts the logs are kept.
//
// The cluster is always one of its own, whatever TEST_KUBECONFIG says: it is to be broken.
package e2e
