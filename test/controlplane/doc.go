// Controlplane is a real Kubernetes control plane in one binary, for tests and demonstrations: kube-apiserver and etcd
// built from their Go modules, with TLS and RBAC, and without a container engine, a download or a fixed port.
//
//	controlplane up --dir DIR [--kubeconfig FILE] [--with-controllers]
//
// runs both until it is told to end, and with --with-controllers also Kubernetes' own garbage collector, namespace
// controller and cluster-role aggregation. There are no nodes: a Pod is accepted and never runs.
//
// What it may be relied on for:
//
//   - The two servers are processes of their own. DIR/etcd.pid and DIR/apiserver.pid say which, so that a test can kill
//     or pause one of them while the rest goes on. What was killed is started again, on the same port and data, with
//     "controlplane etcd --dir DIR" or "controlplane apiserver --dir DIR".
//   - Everything is in DIR: keys, ports, data, logs and the administrator's kubeconfig. A later "up" on the same DIR is
//     the same cluster again.
//   - Every process ends on SIGTERM and SIGINT, and when the process that started it has ended, however that ended.
//   - A killed server loses nothing. A machine that loses power may lose everything: etcd runs without fsync.
package main
