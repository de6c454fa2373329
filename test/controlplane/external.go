//go:build external

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// assetsEnv names the environment variable that contains the folder of etcd and kube-apiserver. controller-runtime's
// envtest uses the same variable.
const assetsEnv = "KUBEBUILDER_ASSETS"

// The names of the programs in the folder.
const (
	etcdProgram      = "etcd"
	apiServerProgram = "kube-apiserver"
)

// checkPrograms returns an error unless the folder contains both servers.
func checkPrograms() error {
	for _, name := range []string{etcdProgram, apiServerProgram} {
		if _, err := program(name); err != nil {
			return err
		}
	}
	return nil
}

// program returns the path of a program in the folder.
func program(name string) (string, error) {
	folder := os.Getenv(assetsEnv)
	if folder == "" {
		return "", fmt.Errorf("%s is not set: it must name a folder with etcd and kube-apiserver", assetsEnv)
	}
	path, err := filepath.Abs(filepath.Join(folder, name))
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(path); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("%s=%s does not contain %s: unset %s to build etcd and kube-apiserver, or install them there",
			assetsEnv, folder, name, assetsEnv)
	}
	return path, nil
}

// serveAPIServer runs kube-apiserver until this process receives SIGTERM or SIGINT.
func serveAPIServer(ctx context.Context, flags []string, lock *pidFile) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return runProgram(ctx, apiServerProgram, flags, lock)
}

// runEtcd runs etcd until ctx is cancelled.
func runEtcd(ctx context.Context, d dir, at ports, lock *pidFile) error {
	waited := make(chan struct{})
	waiting, cancel := context.WithCancel(ctx)
	go func() {
		defer close(waited)
		if waitHealthy(waiting, d, at) == nil {
			printReady(etcdName, at.etcdURL())
		}
	}()
	defer func() {
		cancel()
		<-waited
	}()
	return runProgram(ctx, etcdProgram, etcdFlags(d, at), lock)
}

func etcdFlags(d dir, at ports) []string {
	return []string{
		"--data-dir=" + d.path("etcd"),
		"--listen-client-urls=" + at.etcdURL(),
		"--advertise-client-urls=" + at.etcdURL(),
		"--listen-peer-urls=http://127.0.0.1:0", // A single member has no peers, but etcd requires a URL.
		"--cert-file=" + d.cert(etcdCert),
		"--key-file=" + d.key(etcdCert),
		"--trusted-ca-file=" + d.cert(etcdCA),
		"--client-cert-auth",
		"--heartbeat-interval=" + strconv.Itoa(etcdHeartbeatMillis),
		"--election-timeout=" + strconv.Itoa(etcdElectionMillis),
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

// waitHealthy waits until etcd is healthy. It returns an error if ctx is cancelled first.
func waitHealthy(ctx context.Context, d dir, at ports) error {
	const interval = 20 * time.Millisecond
	cert, err := tls.LoadX509KeyPair(d.cert(etcdClientCert), d.key(etcdClientCert))
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(d.cert(etcdCA))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
	}}
	defer client.CloseIdleConnections()
	for !respondsOK(ctx, client, at.etcdURL()+"/health") {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(interval):
		}
	}
	return nil
}

// runProgram runs a program from the folder until it exits. If ctx is cancelled, the program receives SIGTERM. The PID
// file contains the program's ID, so that a test can kill or pause the program.
func runProgram(ctx context.Context, name string, flags []string, lock *pidFile) error {
	path, err := program(name)
	if err != nil {
		return err
	}
	cmd := exec.Command(path, flags...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr // The standard output of this process is reserved for printReady.
	if err := cmd.Start(); err != nil {
		return err
	}
	watching, stopWatching := context.WithCancel(context.Background())
	defer stopWatching()
	// The program stays in the group of this process, so that both can be killed together.
	if err := errors.Join(lock.write(cmd.Process.Pid), exitWhenOrphaned(watching, func() {
		_ = cmd.Process.Kill() // The program may already have exited.
		exit()
	})); err != nil {
		_ = cmd.Process.Kill()
		return errors.Join(err, cmd.Wait())
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	select {
	case err := <-exited:
		if err != nil {
			return fmt.Errorf("%s exited: %w", name, err)
		}
		return nil
	case <-ctx.Done():
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Process.Signal(syscall.SIGCONT) // A paused program does not handle SIGTERM.
	<-exited
	return nil
}
