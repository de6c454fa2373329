// Package published reads what an API server publishes of its kinds: the OpenAPI v3 documents at /openapi/v3, one a group
// and version, which every authenticated user may read.
//
// client-go has their client and Kubernetes' package apiserver/pkg/cel/openapi/resolver what finds a kind in them. That one
// takes no context, reads a document again for each kind, and unfolds what refers to another definition: of a Deployment
// that is the whole of a Pod. Here a document is read once as long as it is the same, and what refers to another definition
// is looked up when somebody looks there.
//
// Everything in this package may be used concurrently.
package published
