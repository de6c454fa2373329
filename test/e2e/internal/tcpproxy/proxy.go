package tcpproxy

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
)

// Proxy passes TCP connections on to one server. Its methods may be called concurrently.
type Proxy struct {
	listener net.Listener
	server   string
	serving  sync.WaitGroup
	bytes    atomic.Int64

	mu     sync.Mutex            // guards what follows
	open   chan struct{}         // closed while bytes may pass
	resets bool                  // connections are reset
	conns  map[net.Conn]struct{} // of both sides
	closed bool
}

// Listen starts a proxy on a port of its own on the loopback address.
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

// Addr is where the proxy listens, as host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Bytes is how many have passed, in both directions.
func (p *Proxy) Bytes() int64 { return p.bytes.Load() }

// Stall lets nothing through from now on, and says so to nobody.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		p.open = make(chan struct{})
	default:
	}
}

// Reset resets all connections, and new ones as they come.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resets = true
	p.resetAllLocked()
}

// Heal ends a partition. What was held up arrives.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.healLocked()
}

// HealDropping ends a partition too, but what was held up is lost, with the connections: what lay between had forgotten
// them.
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

// Close ends everything and returns when it has ended.
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
			continue // the client has gone again
		}
		if p.track(client) {
			p.serving.Go(func() { p.serve(client) })
		}
	}
}

// serve passes one connection on, when it may.
func (p *Proxy) serve(client net.Conn) {
	defer p.end(client)
	<-p.gate()
	server, err := net.Dial("tcp", p.server)
	if err != nil || !p.track(server) {
		return
	}
	var ways sync.WaitGroup
	ways.Go(func() { p.pass(server, client) })
	ways.Go(func() { p.pass(client, server) })
	ways.Wait()
	p.end(server)
}

// pass copies until one side ends, and ends the other then.
func (p *Proxy) pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		<-p.gate()
		if _, failed := to.Write(buffer[:n]); failed != nil {
			return
		}
		p.bytes.Add(int64(n))
		if err != nil {
			return // io.EOF, mostly
		}
	}
}

// gate is closed when bytes may pass.
func (p *Proxy) gate() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

// track keeps a connection to be reset, which it is at once if none may be.
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

// reset makes the kernel send RST in place of FIN, and forget what was not sent.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
