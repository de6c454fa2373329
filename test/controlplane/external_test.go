//go:build external

package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// script writes an executable shell script.
func script(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestExternal_ProgramsAreRequired(t *testing.T) {
	folder := t.TempDir()
	for _, step := range []struct {
		prepare  func()
		contains string
	}{
		{func() { t.Setenv(assetsEnv, "") }, "KUBEBUILDER_ASSETS is not set"},
		{func() { t.Setenv(assetsEnv, folder) }, "does not contain etcd"},
		{func() { script(t, filepath.Join(folder, etcdProgram), "") }, "does not contain kube-apiserver"},
		{func() {
			if err := os.WriteFile(filepath.Join(folder, apiServerProgram), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "does not contain kube-apiserver"},
	} {
		step.prepare()
		if err := checkPrograms(); err == nil || !strings.Contains(err.Error(), step.contains) {
			t.Errorf("got the error %v, want %q", err, step.contains)
		}
	}
	script(t, filepath.Join(folder, apiServerProgram), "")
	if err := os.Chmod(filepath.Join(folder, apiServerProgram), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := checkPrograms(); err != nil {
		t.Error(err)
	}
}

// startProgram runs a script as etcd. The script writes its process ID to the file "started".
func startProgram(t *testing.T, text string) (pidPath string, started int, cancel func(), ended <-chan error) {
	t.Helper()
	folder := t.TempDir()
	t.Setenv(assetsEnv, folder)
	script(t, filepath.Join(folder, etcdProgram), "echo $$ >"+folder+"/new; mv "+folder+"/new "+folder+"/started; "+text)
	pidPath = filepath.Join(folder, "etcd.pid")
	lock, err := lockPIDFile(pidPath, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lock.release)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- runProgram(ctx, etcdProgram, nil, lock) }()
	t.Cleanup(cancel)
	for deadline := time.Now().Add(10 * time.Second); started == 0; time.Sleep(5 * time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(folder, "started"))
		started, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		if time.Now().After(deadline) {
			t.Fatal("the program was not started")
		}
	}
	return pidPath, started, cancel, result
}

const untilTerminated = "trap 'exit 0' TERM; while :; do sleep 0.05; done"

func TestExternal_PIDFileContainsTheProgram(t *testing.T) {
	path, pid, cancel, ended := startProgram(t, untilTerminated)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(text)) == strconv.Itoa(pid) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the PID file contains %q, want %d", text, pid)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestExternal_PausedProgramEnds(t *testing.T) {
	_, pid, cancel, ended := startProgram(t, untilTerminated)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestExternal_FailureOfTheProgramIsReported(t *testing.T) {
	_, _, _, ended := startProgram(t, "exit 3")
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "etcd exited: exit status 3") {
		t.Errorf("got the error %v", err)
	}
}
