// Kindnode builds a node image for kind without a container registry, from Go modules, Debian packages and a small C
// program. It requires Go, gcc, pkg-config, debootstrap and a Docker Engine. debootstrap must run as root.
//
// The versions are in versions.go and go.mod. The image is rebuilt only if this directory, the Go version or the
// architecture has changed. A rebuild uses the intermediate results in the work directory.
//
// The image contains the components that kind requires: systemd, containerd, runc, the CNI plugins, kubelet, kubeadm,
// kubectl, crictl, manifests for a network and a StorageClass, and the preloaded images of the control plane. The
// network is a DaemonSet that writes a CNI configuration and maintains routes between the nodes
// (components/network.go). The StorageClass does not provision volumes. The address of a node must not change. kind's
// own image does not have this restriction, because it updates its configuration if Docker restarts a container with
// another address.
package main
