// Demo demonstrates the platform. It applies a Blueprint, creates instances of its type and checks that their children
// are created. It then deletes a child, changes the Blueprint, makes a mistake in it, kills the leader, and finally
// deletes the Blueprint and everything that was created for it.
//
//	demo [--stay] [--deployed COMMAND --namespace NAMESPACE]
//
// It starts a control plane, or uses the cluster in KUBECONFIG if that is set. It runs two processes of
// bin/dynamic-controller, prints each step with the time that it took, and then exits. The exit code is 0 only if all
// steps were observed at the API server.
//
// With --stay, it applies the Blueprint and waits for Ctrl-C. With --deployed, it starts no processes and uses the
// replicas that run as Pods in the namespace. The API server cannot kill a Pod with SIGKILL, so the demonstration runs
// COMMAND with the namespace and the name of the Pod to kill.
//
// When it exits, no processes are left. On a cluster that it did not start, it also deletes everything that belongs to
// its Blueprint.
package main
