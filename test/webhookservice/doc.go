// Package webhookservice makes the API server in a test call the platform's webhook. The control planes of the
// tests have no kube-proxy. A [Service] forwards connections from the API server to the replicas instead.
package webhookservice
