#!/bin/sh
# make kind-demo: run the demonstration on a temporary kind cluster. The output is also written to the file in
# KIND_DEMO_LOG, for make kind-picture.
set -eu
cd "$(dirname "$0")/../.."
go build -C examples -o ../bin/demo ./demo
exec examples/kind/with-cluster.sh "make kind-demo" dynamic-controller-demo \
	bin/demo --namespace dynamic-controller-system --deployed examples/kind/kill-pod \
	--transcript "${KIND_DEMO_LOG:-bin/kind-demo.log}"
