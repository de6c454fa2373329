package tcpproxy_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dynamic-controller/engine/test/e2e/internal/tcpproxy"
)

// echo starts a server that sends each received line back to the client and to the returned channel.
func echo(t *testing.T) (addr string, got <-chan string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				for scanner := bufio.NewScanner(conn); scanner.Scan(); {
					lines <- scanner.Text()
					if _, err := io.WriteString(conn, scanner.Text()+"\n"); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return listener.Addr().String(), lines
}

func listen(t *testing.T) (p *tcpproxy.Proxy, got <-chan string) {
	t.Helper()
	server, got := echo(t)
	p, err := tcpproxy.Listen(server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, got
}

type conn struct {
	*testing.T
	net.Conn
	reader *bufio.Reader
}

func dial(t *testing.T, p *tcpproxy.Proxy) conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return conn{t, c, bufio.NewReader(c)}
}

func (c conn) send(line string) {
	c.Helper()
	if _, err := io.WriteString(c.Conn, line+"\n"); err != nil {
		c.Fatal(err)
	}
}

// read reads a line. It returns an error after the timeout.
func (c conn) read(timeout time.Duration) (string, error) {
	c.Helper()
	if err := c.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		c.Fatal(err)
	}
	line, err := c.reader.ReadString('\n')
	return line, err
}

func (c conn) wants(line string) {
	c.Helper()
	if got, err := c.read(10 * time.Second); err != nil || got != line+"\n" {
		c.Fatalf("read %q, %v; want %q", got, err, line)
	}
}

// observationTime is how long a test waits for data that must not arrive.
const observationTime = 100 * time.Millisecond

func TestStall_DelaysDataInBothDirections(t *testing.T) {
	p, got := listen(t)
	c := dial(t, p)
	c.send("before")
	c.wants("before")
	<-got

	p.Stall()
	c.send("held")
	other := dial(t, p) // A new connection is accepted.
	other.send("held too")
	if line, err := c.read(observationTime); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %q, %v during a partition; want a timeout", line, err)
	}
	select {
	case line := <-got:
		t.Fatalf("the server received %q during a partition", line)
	default:
	}

	p.Heal()
	c.wants("held")
	other.wants("held too")
}

func TestHealDropping_LosesDelayedData(t *testing.T) {
	p, got := listen(t)
	c := dial(t, p)
	c.send("before")
	c.wants("before")
	<-got
	p.Stall()
	c.send("held")
	p.HealDropping()
	if line, err := c.read(10 * time.Second); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Fatalf("read %q, %v; want a reset", line, err)
	}
	other := dial(t, p)
	other.send("after")
	other.wants("after")
	if line := <-got; line != "after" {
		t.Fatalf("the server received %q, want %q", line, "after")
	}
}

func TestReset_ResetsConnectionsUntilHeal(t *testing.T) {
	p, _ := listen(t)
	c := dial(t, p)
	c.send("before")
	c.wants("before")
	p.Reset()
	if line, err := c.read(10 * time.Second); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("read %q, %v; want a reset", line, err)
	}
	if conn, err := net.Dial("tcp", p.Addr()); err == nil {
		defer conn.Close()
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Fatal("a new connection was not reset")
		}
	}
	p.Heal()
	other := dial(t, p)
	other.send("after")
	other.wants("after")
	if p.Bytes() == 0 {
		t.Error("no bytes were counted")
	}
}

func TestClose_ClosesStalledConnections(t *testing.T) {
	p, _ := listen(t)
	c := dial(t, p)
	p.Stall()
	c.send("held")
	p.Close()
	if _, err := c.read(10 * time.Second); err == nil {
		t.Fatal("the connection was not closed when the proxy was closed")
	}
}
