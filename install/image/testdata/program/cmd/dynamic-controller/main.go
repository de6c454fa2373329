// Program dynamic-controller stands in for the platform in the tests of the image, because it is compiled faster.
package main

import (
	"os"
	"runtime"
)

var version, commit string

func main() { os.Stdout.WriteString(version + " " + commit + " " + runtime.GOARCH + "\n") }
