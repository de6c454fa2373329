package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// The components are the two servers, which are separate processes. Their names are also the names of their commands
// and files.
const (
	etcdName      = "etcd"
	apiServerName = "apiserver"
)

// lockTimeout limits how long a component waits for an earlier process of the same component to exit.
const lockTimeout = 5 * time.Second

// readySuffix is the end of the line that a component prints when it is ready to serve requests.
const readySuffix = " is ready"

func printReady(component, url string) { fmt.Printf("%s at %s%s\n", component, url, readySuffix) }

func dirFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "dir", "", "directory for all files of the control plane (required)")
	if err := cmd.MarkFlagRequired("dir"); err != nil {
		panic(err) // The flag is not defined.
	}
}

// openComponent prepares this process to run one of the two servers in a directory that "up" has initialized.
func openComponent(path, component string) (dir, ports, *pidFile, error) {
	fail := func(err error) (dir, ports, *pidFile, error) { return "", ports{}, nil, err }
	if _, err := os.Stat(path); err != nil {
		return fail(err)
	}
	d, err := openDir(path)
	if err != nil {
		return fail(err)
	}
	p, err := d.readPorts()
	if err != nil {
		return fail(fmt.Errorf("%s is not the directory of a control plane: %w", d, err))
	}
	lock, err := lockPIDFile(d.pidFile(component), lockTimeout)
	if err != nil {
		return fail(fmt.Errorf("%s in %s: %w", component, d, err))
	}
	return d, p, lock, nil
}
