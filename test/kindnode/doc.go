// Kindnode builds a node image for kind where no container registry is reachable: from Go modules, Debian packages and
// twenty lines of C. It needs Go, gcc, pkg-config, debootstrap, a Docker Engine, and root for debootstrap.
//
// Versions are in versions.go and go.mod. The image is built again only when this directory, the Go version or the
// architecture changes; the intermediate results in the work directory make that quick.
//
// The image contains what kind requires of a node: systemd, containerd, runc, the CNI plugins, kubelet, kubeadm,
// kubectl, crictl, manifests for a network and a StorageClass, and the images of the control plane, preloaded. The
// network is one DaemonSet that writes a CNI configuration and keeps routes between the nodes (components/network.go).
// The StorageClass provisions nothing. Nodes cannot change their address: kind's own image repairs its configuration
// when Docker restarts a container with another one.
package main
