// Show runs an example before your eyes, on a control plane that it starts, or on the cluster of KUBECONFIG if that is
// set:
//
//	show [--examples DIR] [--binaries DIR] NAME
//
// It does what you would do by hand, and says so in the words of your shell: it applies the example's manifests, runs its
// binary, and ends it with a SIGTERM. What the example prints is seen between. The exit code is 0 only if the example has
// said all that its story waits for and ended with exit code 0 itself. Nothing of it is left behind but, on the cluster of
// KUBECONFIG, the leases of those that elect a leader.
//
// The stories are in stories.go; the tests tell each of them.
package main
