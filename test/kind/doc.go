// Package kind tests what only real nodes show: signals and grace periods, kills for memory, and a node without network.
// Its tests have the build tag "kind" and run on the cluster that make test-kind creates.
package kind
