// Package integration tests the promises of the engine, the REST mapper, replicas and handlers against a real API
// server. Each package's documentation lists the promises of that package. If a test verifies a numbered promise, such
// as S1, the number follows the word Test in the test's name.
package integration
