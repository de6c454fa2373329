package webhookservice

import (
	"bufio"
	"net"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listen returns a listener that is closed when the test ends.
func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

// greet sends a line to each client, and keeps the connections open until the listener is closed.
func greet(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Write([]byte("hello\n"))
	}
}

func TestService_ForwardsToReplicasThatAcceptConnections(t *testing.T) {
	alive, dead := listen(t), listen(t)
	dead.Close()
	go greet(alive)
	var addresses atomic.Pointer[[]string]
	addresses.Store(&[]string{alive.Addr().String(), dead.Addr().String()})
	s, err := Listen(func() []string { return *addresses.Load() })
	if err != nil {
		t.Fatal(err)
	}
	read := func() (string, net.Conn) {
		t.Helper()
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		line, _ := bufio.NewReader(conn).ReadString('\n')
		return line, conn
	}
	var last net.Conn
	for range 10 { // the order is random
		var line string
		if line, last = read(); line != "hello\n" {
			t.Fatalf("got %q", line)
		}
	}
	addresses.Store(&[]string{dead.Addr().String()})
	if line, _ := read(); line != "" {
		t.Errorf("got %q although no replica runs", line)
	}
	s.Close()
	if n, err := last.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes after Close", n)
	}
}
