// Package protect calls user code and examines the values that it returns, so that a mistake in that code never ends the
// process. Each mistake becomes a [Mistake], an error whose text is computed before anything else uses it.
//
// It cannot help where Go itself ends the process: on concurrent map writes, on a stack overflow, or when memory is exhausted.
package protect
