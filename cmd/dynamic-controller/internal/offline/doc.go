// Package offline implements the commands validate and render. They validate Blueprints and instances, and render the
// children of an instance, before anything is applied. They never write to a cluster.
package offline
