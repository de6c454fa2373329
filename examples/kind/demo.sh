#!/bin/sh
# The demonstration on a kind cluster of its own: make kind-demo. KIND_DEMO_LOG is the file to which the demonstration's lines
# are copied, for make kind-picture.
set -eu
cd "$(dirname "$0")/../.."
go build -o bin/demo ./examples/demo
exec examples/kind/with-cluster.sh "make kind-demo" dynamic-controller-demo \
	bin/demo --namespace dynamic-controller-system --deployed examples/kind/kill-pod \
	--transcript "${KIND_DEMO_LOG:-bin/kind-demo.log}"
