// Demo shows the platform at work: a Blueprint is applied, its type is served, an instance becomes other objects and stays
// what it should be, a changed Blueprint rolls out, a broken one is refused, the replica that leads is killed and the other
// takes over, and the Blueprint goes with all that it made.
//
//	demo [--stay] [--deployed COMMAND --namespace NAMESPACE]
//
// It starts a control plane, or takes the cluster of KUBECONFIG if that is set, runs bin/dynamic-controller as two
// processes and tells what happens with the times that it took. It ends by itself, with exit code 0 only if all that it
// announced was seen at the API server. With --stay it applies the Blueprint and leaves you to it until Ctrl-C. With
// --deployed it starts no processes and takes the replicas that run as Pods in the namespace; as the API server cannot kill
// without warning, the command does, which is given the namespace and the name of a Pod.
//
// It leaves nothing behind: no process, and on a cluster that it did not start nothing of its Blueprint.
package main
