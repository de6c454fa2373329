package main

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
)

func listen(t *testing.T) (port int, release func()) {
	t.Helper()
	l, err := net.Listen("tcp", loopback(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).Port, func() { l.Close() }
}

func TestChoosePorts_StoresTheChosenPorts(t *testing.T) {
	free := func(t *testing.T) int {
		port, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		return port
	}

	t.Run("ports are below the ephemeral range and stored", func(t *testing.T) {
		d := dir(t.TempDir())
		first, err := d.choosePorts(ports{})
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range []int{first.Etcd, first.APIServer} {
			if port < lowestPort || port > highestPort {
				t.Errorf("port %d is not between %d and %d", port, lowestPort, highestPort)
			}
		}
		if again, err := d.choosePorts(ports{}); err != nil || again != first {
			t.Errorf("second call: got %v, %v; want %v", again, err, first)
		}
		if read, err := d.readPorts(); err != nil || read != first {
			t.Errorf("readPorts: got %v, %v; want %v", read, err, first)
		}
	})
	t.Run("a fixed port is stored and the other one does not change", func(t *testing.T) {
		d := dir(t.TempDir())
		first, err := d.choosePorts(ports{})
		if err != nil {
			t.Fatal(err)
		}
		want := ports{Etcd: first.Etcd, APIServer: free(t)}
		if got, err := d.choosePorts(ports{APIServer: want.APIServer}); err != nil || got != want {
			t.Errorf("got %v, %v; want %v", got, err, want)
		}
		if got, err := d.choosePorts(ports{}); err != nil || got != want {
			t.Errorf("second call: got %v, %v; want %v", got, err, want)
		}
	})
	t.Run("a port in use is an error", func(t *testing.T) {
		d := dir(t.TempDir())
		port, release := listen(t)
		if _, err := d.choosePorts(ports{Etcd: port}); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("fixed port: got %v, want %v", err, syscall.EADDRINUSE)
		}
		release()
		if _, err := d.choosePorts(ports{Etcd: port}); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := d.choosePorts(ports{}); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("stored port: got %v, want %v", err, syscall.EADDRINUSE)
		}
	})
	t.Run("the same port for both servers is an error", func(t *testing.T) {
		port := free(t)
		if _, err := dir(t.TempDir()).choosePorts(ports{Etcd: port, APIServer: port}); err == nil {
			t.Error("got no error")
		}
	})
	t.Run("an invalid file is an error", func(t *testing.T) {
		d := dir(t.TempDir())
		if err := os.WriteFile(d.path("ports.json"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.choosePorts(ports{}); err == nil {
			t.Error("got no error")
		}
	})
}
