// Package onserver tests what package blueprint makes on a real API server: there the manifest, the definitions and the
// rendered objects are taken, and nowhere else is known whether they are.
package onserver
