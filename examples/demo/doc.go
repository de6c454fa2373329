// Demo shows the platform at work: types that are defined while it runs are served, and released when they go.
//
//	demo [--stay]
//
// It starts a control plane, or takes the cluster of KUBECONFIG if that is set, runs bin/dynamic-controller as a process
// of its own and tells what happens with the times that it took. It ends by itself, with exit code 0 only if all that it
// announced was seen at the API server. With --stay it defines the types and leaves you to it until Ctrl-C.
//
// It leaves nothing behind: no process, and on a cluster that it did not start none of its types.
package main
