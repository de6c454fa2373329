// Command picture draws a run of the demonstration as an SVG image. It reads the output of make kind-demo from standard
// input and writes the image to standard output:
//
//	go run -C examples ./kind/picture <bin/kind-demo.log >docs/kind-demo.svg
//
// The upper part has a row for each step, with the measured time as a bar on a logarithmic scale. The lower part shows
// when each Pod led, on a linear scale. The image has no external assets, and its colors follow the reader's color
// scheme.
package main
