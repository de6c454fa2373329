#!/bin/sh
# The demonstration on a kind cluster of its own: make kind-demo.
set -eu
cd "$(dirname "$0")/../.."
cluster=dynamic-controller-demo
namespace=dynamic-controller-system
image=dynamic-controller:kind

say() { echo "make kind-demo: $*" >&2; }

missing=
for tool in docker kind kubectl; do
	command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
if [ -n "$missing" ]; then
	say "these are needed and not found:$missing. See https://kind.sigs.k8s.io/docs/user/quick-start/."
	say "make demo tells the same story without them, on a control plane of its own."
	exit 1
fi
if ! docker info >/dev/null 2>&1; then
	say "docker is there, but its daemon does not answer: docker info says why."
	exit 1
fi
if kind get clusters 2>/dev/null | grep -qx "$cluster"; then
	say "there is a kind cluster $cluster already. If nobody needs it: kind delete cluster --name $cluster"
	exit 1
fi

go build -o bin/demo ./examples/demo
docker build --tag "$image" --file examples/kind/Dockerfile .

dir=$(mktemp -d)
export KUBECONFIG="$dir/kubeconfig"
end() {
	code=$?
	trap - EXIT
	if [ "$code" -ne 0 ]; then
		say "failed; this is what there was:"
		kubectl --namespace "$namespace" get pods,leases,events >&2 || true
	fi
	kind delete cluster --name "$cluster" || code=1
	rm -rf "$dir"
	exit "$code"
}
trap end EXIT
trap 'exit 130' INT TERM HUP

kind create cluster --name "$cluster" --config examples/kind/cluster.yaml --wait 3m
kind load docker-image "$image" --name "$cluster"
kubectl apply --server-side --kustomize examples/kind
kubectl --namespace "$namespace" rollout status deployment/dynamic-controller --timeout 3m
bin/demo --namespace "$namespace" --deployed examples/kind/kill-pod
