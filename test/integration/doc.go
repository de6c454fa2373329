// Package integration proves what the engine promises against a real API server, one file a promise. The tests carry
// the promises' numbers (doc.go of package dynamiccontroller lists them).
package integration
