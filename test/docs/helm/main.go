// Command helm is the helm of the release that the module requires.
package main

import (
	"errors"
	"fmt"
	"os"

	"helm.sh/helm/v4/pkg/cmd"
)

func main() {
	command, err := cmd.NewRootCmd(os.Stdout, os.Args[1:], cmd.SetupLogging)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := command.Execute(); err != nil { // Execute has printed the error.
		code := 1
		if failed, ok := errors.AsType[cmd.CommandError](err); ok {
			code = failed.ExitCode
		}
		os.Exit(code)
	}
}
