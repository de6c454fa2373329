// Package apiproxy provides a proxy between a client and an API server that records the client's requests. The
// proxy is an HTTPS server that forwards each request and records its verb, its resource and the status of the
// response. A [Trap] stops the client at a request chosen by the test.
//
// The proxy itself has no permissions. It forwards the client's bearer tokens, but not client certificates.
package apiproxy
