package webhookservice

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// Service forwards TCP connections to replicas.
type Service struct {
	listener net.Listener
	replicas func() []string
	closed   chan struct{}
	running  sync.WaitGroup
}

// Listen starts a Service on a free port of the loopback address. For each connection, it calls the replicas function,
// which can be called concurrently and returns addresses. The connection is forwarded to a random address that accepts
// connections. Without such an address, the connection is closed. The caller must call Close.
func Listen(replicas func() []string) (*Service, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for connections to the webhook: %w", err)
	}
	s := &Service{listener: listener, replicas: replicas, closed: make(chan struct{})}
	s.running.Go(s.accept)
	return s, nil
}

// Port returns the port of the Service.
func (s *Service) Port() int32 { return int32(s.listener.Addr().(*net.TCPAddr).Port) }

// Close closes the listener and all connections, and waits until all goroutines have exited.
func (s *Service) Close() {
	close(s.closed)
	_ = s.listener.Close()
	s.running.Wait()
}

func (s *Service) accept() {
	for {
		client, err := s.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err == nil:
			s.running.Go(func() { s.forward(client) })
		}
	}
}

// forward returns when either side has closed the connection.
func (s *Service) forward(client net.Conn) {
	defer client.Close()
	server := s.dial()
	if server == nil {
		return
	}
	defer server.Close()
	ended := make(chan struct{}, 2)
	for _, each := range []struct{ to, from net.Conn }{{server, client}, {client, server}} {
		s.running.Go(func() {
			_, _ = io.Copy(each.to, each.from)
			ended <- struct{}{}
		})
	}
	select {
	case <-ended:
	case <-s.closed:
	}
}

// dial returns a connection to a replica, or nil.
func (s *Service) dial() net.Conn {
	addresses := slices.Clone(s.replicas())
	rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	for _, address := range addresses {
		if server, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			return server
		}
	}
	return nil
}
