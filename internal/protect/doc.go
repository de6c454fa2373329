// Package protect calls user code and checks the values that it returns, so that a mistake in that code never ends the
// process. Each mistake is returned as a [Mistake], an error whose text has already been computed.
//
// It does not protect against fatal errors from the Go runtime, such as concurrent map writes, stack overflow and
// running out of memory.
package protect
