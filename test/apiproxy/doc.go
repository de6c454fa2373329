// Package apiproxy is what a test puts between a client and an API server to see what the client asks for: an HTTPS server
// that passes every request on and notes its verb, resource and answer. A [Trap] in it kills the client at a call of the
// test's choice.
//
// It brings no rights of its own: a client is whoever its bearer token says. Client certificates do not get through.
package apiproxy
