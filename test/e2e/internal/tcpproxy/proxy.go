package tcpproxy

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
)

// Proxy forwards TCP connections to a server. Its methods can be called concurrently.
type Proxy struct {
	listener net.Listener
	server   string
	serving  sync.WaitGroup
	bytes    atomic.Int64

	mu     sync.Mutex            // Guards the fields below.
	open   chan struct{}         // Closed while data can pass.
	resets bool                  // Set while connections are reset.
	conns  map[net.Conn]struct{} // Connections to clients and to the server.
	closed bool
}

// Listen starts a proxy on a free port of the loopback address.
func Listen(server string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for connections to %s: %w", server, err)
	}
	p := &Proxy{listener: listener, server: server, open: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	close(p.open)
	p.serving.Go(p.accept)
	return p, nil
}

// Addr returns the address of the proxy as host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Bytes returns the number of bytes that have been forwarded in both directions.
func (p *Proxy) Bytes() int64 { return p.bytes.Load() }

// Stall stops forwarding data without closing any connection.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		p.open = make(chan struct{})
	default:
	}
}

// Reset resets all existing and new connections.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resets = true
	p.resetAllLocked()
}

// Heal ends a partition or the resets. Delayed data is then delivered.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.healLocked()
}

// HealDropping ends a partition and resets all connections, so that delayed data is lost. It simulates a network device
// that has dropped the state of the connections.
func (p *Proxy) HealDropping() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resetAllLocked()
	p.healLocked()
}

func (p *Proxy) healLocked() {
	p.resets = false
	select {
	case <-p.open:
	default:
		close(p.open)
	}
}

// Close closes the listener and all connections, and waits until all goroutines have exited.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	_ = p.listener.Close()
	p.resetAllLocked()
	p.healLocked()
	p.mu.Unlock()
	p.serving.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // The client has closed the connection.
		}
		if p.track(client) {
			p.serving.Go(func() { p.serve(client) })
		}
	}
}

// serve forwards one connection once data can pass.
func (p *Proxy) serve(client net.Conn) {
	defer p.end(client)
	<-p.opened()
	server, err := net.Dial("tcp", p.server)
	if err != nil || !p.track(server) {
		return
	}
	var forwarding sync.WaitGroup
	forwarding.Go(func() { p.forward(server, client) })
	forwarding.Go(func() { p.forward(client, server) })
	forwarding.Wait()
	p.end(server)
}

// forward copies data in one direction until one side is closed, and then closes the other side.
func (p *Proxy) forward(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		<-p.opened()
		if _, failed := to.Write(buffer[:n]); failed != nil {
			return
		}
		p.bytes.Add(int64(n))
		if err != nil {
			return // Usually io.EOF.
		}
	}
}

// opened returns a channel that is closed once data can pass.
func (p *Proxy) opened() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

// track registers a connection. If connections are currently reset, it resets the connection and returns false.
func (p *Proxy) track(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.resets {
		reset(conn)
		return false
	}
	p.conns[conn] = struct{}{}
	return true
}

func (p *Proxy) end(conn net.Conn) {
	_ = conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}

func (p *Proxy) resetAllLocked() {
	for conn := range p.conns {
		reset(conn)
	}
}

// reset closes a connection with RST instead of FIN and discards unsent data.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
