// Package testkit contains what tests of all modules share. Only tests import it.
//
// A test that waits for another goroutine, process or API server calls [Eventually], or [Poll] if an error must not end
// the test. The time between two checks grows with the time that has passed, from 1 ms to 50 ms. A test therefore waits
// at most a few percent longer than necessary, and long waits put little load on an API server that many tests share.
// Both functions can be used in bubbles of testing/synctest.
//
// [Parameters] returns what callers can pass to a package, for tests that must cover all of it.
package testkit
