package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"go.uber.org/goleak"
)

// helperEnv makes the test binary run as a helper process of a test.
const helperEnv = "CONTROLPLANE_TEST_HELPER"

func TestMain(m *testing.M) {
	if helper := os.Getenv(helperEnv); helper != "" {
		if err := runHelper(helper); err != nil {
			fmt.Fprintln(os.Stderr, helper, err)
			os.Exit(1)
		}
		return
	}
	// Packages of kube-apiserver start goroutines in their init functions.
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}

func runHelper(helper string) error {
	switch helper {
	case "parent": // Starts a "child" and runs until it is killed.
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), helperEnv+"=child", parentEnv+"="+strconv.Itoa(os.Getpid()))
		cmd.Stderr = os.Stderr
		cmd.Stdout = os.Stdout
		if err := cmd.Start(); err != nil {
			return err
		}
		return cmd.Wait()
	case "child": // Prints a line and exits with its parent.
		pid, err := parentPID()
		if err != nil {
			return err
		}
		fmt.Println("running")
		waitOrphaned(context.Background(), pid, os.Getppid)
		return nil
	}
	return fmt.Errorf("unknown helper")
}
