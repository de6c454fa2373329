// Package onserver tests the output of package blueprint against a real API server. The API server must accept the
// manifest, the definitions and the rendered objects.
package onserver
