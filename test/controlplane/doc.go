// Controlplane is a real Kubernetes control plane in one binary, for tests and demonstrations. It contains
// kube-apiserver and etcd, built from their Go modules, and uses TLS and RBAC. It requires no container engine, no
// downloads and no fixed ports.
//
// The following command runs both servers until it receives SIGTERM or SIGINT:
//
//	controlplane up --dir DIR [--kubeconfig FILE] [--with-controllers]
//
// With --with-controllers, the command also runs Kubernetes' garbage collector, namespace controller and cluster role
// aggregation. There are no nodes, so Pods can be created, but they never run.
//
// Built with the tag "external", the binary does not contain the two servers. It then runs the programs etcd and
// kube-apiserver in the folder that KUBEBUILDER_ASSETS names. If such a binary is killed with SIGKILL on its own, the
// program that it started keeps running.
//
// Controlplane guarantees the following:
//
//   - The two servers are separate processes. Their process IDs are in DIR/etcd.pid and DIR/apiserver.pid, so that a
//     test can kill or pause one server while the other keeps running. After a server has been killed,
//     "controlplane etcd --dir DIR" or "controlplane apiserver --dir DIR" restarts it with the same port and data.
//   - All files are in DIR: keys, ports, data, logs and the administrator's kubeconfig. A later "up" with the same DIR
//     continues the same cluster.
//   - Every process exits when it receives SIGTERM or SIGINT, or when the process that started it has exited for any
//     reason.
//   - A killed server loses no data. A power failure can lose all data because etcd runs without fsync.
package main
