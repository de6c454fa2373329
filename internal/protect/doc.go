// Package protect calls user code and examines the values that it returns, so that a mistake in that code never ends the
// process. Each mistake becomes a [Mistake], an error whose text is computed before anything else uses it.
//
// It does not protect against fatal errors of the Go runtime: concurrent map writes, stack overflow and out of memory.
package protect
