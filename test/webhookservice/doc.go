// Package webhookservice makes the API server of a test call the webhook of the platform. The control planes of the
// tests have no kube-proxy. A [Service] forwards the connections of the API server to the replicas instead.
package webhookservice
