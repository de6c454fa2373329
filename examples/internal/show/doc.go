// Show runs an example on a control plane that it starts, or on the cluster in KUBECONFIG if that is set:
//
//	show [--examples DIR] [--binaries DIR] NAME
//
// It applies the manifests of the example, runs its binary and stops it with SIGTERM. It prints each of these steps
// as a shell command, and the output of the example. The exit code is 0 if the example printed the lines that its
// scenario waits for and exited with code 0. Afterwards, show deletes everything that was created, except for leader
// election leases on the cluster in KUBECONFIG.
//
// The scenarios are in scenarios.go, and the tests run each of them.
package main
