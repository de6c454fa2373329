#!/bin/sh
# with-cluster.sh NAME CLUSTER COMMAND...: run a command on a temporary kind cluster to which the platform has been
# deployed. Messages begin with NAME. The command receives the kubeconfig of the cluster in KUBECONFIG, and the Docker
# network of the nodes in KIND_NETWORK. KIND_CONFIG selects the configuration of the cluster; the default has three
# nodes.
set -eu
cd "$(dirname "$0")/../.."
name=$1
cluster=$2
shift 2
namespace=dynamic-controller-system
image=dynamic-controller:kind

say() { echo "$name: $*" >&2; }
. examples/kind/tools.sh

if ! command -v docker >/dev/null 2>&1; then
	say "docker is not installed. make demo runs the same demonstration without it, on a temporary control plane."
	exit 1
fi
if ! docker info >/dev/null 2>&1; then
	say "docker is installed, but its daemon does not answer: docker info shows the reason."
	exit 1
fi
use_tools
if kind get clusters 2>/dev/null | grep -qx "$cluster"; then
	say "the kind cluster $cluster exists. If it is not in use: kind delete cluster --name $cluster"
	exit 1
fi

build_image "$image"
choose_node_image
use_privileges "$image"

# kind's default network can be in use by other clusters. This network is removed with the cluster.
export KIND_EXPERIMENTAL_DOCKER_NETWORK="$cluster" KIND_NETWORK="$cluster"
dir=$(mktemp -d)
export KUBECONFIG="$dir/kubeconfig"
end() {
	code=$?
	trap - EXIT
	if [ "$code" -ne 0 ]; then
		say "failed; the state of the cluster:"
		kubectl --namespace "$namespace" get pods,leases,events >&2 || true
	fi
	if [ -n "${KEEP:-}" ]; then
		say "KEEP: export KUBECONFIG=$KUBECONFIG"
		say "KEEP: to delete the cluster: kind delete cluster --name $cluster && docker network rm $cluster"
		exit "$code"
	fi
	kind delete cluster --name "$cluster" || code=1
	docker network rm "$cluster" >/dev/null || code=1
	rm -rf "$dir"
	exit "$code"
}
trap end EXIT
trap 'exit 130' INT TERM HUP

kind create cluster --name "$cluster" --config "${KIND_CONFIG:-examples/kind/cluster.yaml}" --wait 3m ${KIND_NODE_IMAGE:+--image "$KIND_NODE_IMAGE"}
kind load docker-image "$image" --name "$cluster"
kubectl wait --for=condition=Ready nodes --all --timeout 3m
kubectl apply --server-side --kustomize examples/kind
kubectl apply --server-side --filename examples/kind/demo-role.yaml
kubectl --namespace "$namespace" rollout status deployment/dynamic-controller --timeout 3m
"$@"
