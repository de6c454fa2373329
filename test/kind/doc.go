// Package kind tests behavior that requires real nodes: signals and grace periods, OOM kills, and a node without a
// network connection. The tests have the build tag "kind" and run on the cluster that "make test-kind" creates.
package kind
