package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// The parts are the servers, each a process of its own. Their names are those of the commands that run them, and of
// their files.
const (
	etcdPart      = "etcd"
	apiServerPart = "apiserver"
)

// partHandover is how long a part waits for a process that is the same part of the same directory and is ending.
const partHandover = 5 * time.Second

// readySuffix ends the one line that a part prints, once it answers requests.
const readySuffix = " is ready"

func sayReady(part, url string) { fmt.Printf("%s at %s%s\n", part, url, readySuffix) }

func dirFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "dir", "", "the directory in which the control plane keeps everything (required)")
	if err := cmd.MarkFlagRequired("dir"); err != nil {
		panic(err) // there is no such flag
	}
}

// openPart prepares this process to be one of the servers of a directory that an "up" has filled.
func openPart(path, part string) (dir, ports, *pidFile, error) {
	fail := func(err error) (dir, ports, *pidFile, error) { return "", ports{}, nil, err }
	if err := exitWhenOrphaned(); err != nil {
		return fail(err)
	}
	if _, err := os.Stat(path); err != nil {
		return fail(err)
	}
	d, err := openDir(path)
	if err != nil {
		return fail(err)
	}
	p, err := d.readPorts()
	if err != nil {
		return fail(fmt.Errorf("%s was never up: %w", d, err))
	}
	lock, err := lockPIDFile(d.pidFile(part), partHandover)
	if err != nil {
		return fail(fmt.Errorf("%s on %s: %w", part, d, err))
	}
	return d, p, lock, nil
}
