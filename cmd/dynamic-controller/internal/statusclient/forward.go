package statusclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // client-go's dialers have this type
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// forwarder connects to a port of a Pod through the API server, like kubectl port-forward, but without a local port
// that other users on the host could use.
type forwarder struct {
	dialer httpstream.Dialer
	pod    string
	port   int32
}

func newForwarder(cfg *rest.Config, namespace, pod string, port int32) (*forwarder, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 0 // the connection remains open
	client, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	target := client.RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("portforward").URL()
	overSPDY, upgrader, err := spdy.RoundTripperFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("forward a port: %w", err)
	}
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialer(target, cfg)
	if err != nil {
		return nil, fmt.Errorf("forward a port: %w", err)
	}
	return &forwarder{
		dialer: portforward.NewFallbackDialer(overWebSocket,
			spdy.NewDialer(upgrader, &http.Client{Transport: overSPDY}, http.MethodPost, target), mustFallBack),
		pod: namespace + "/" + pod, port: port,
	}, nil
}

// mustFallBack reports whether the API server, or a proxy in front of it, does not support WebSockets.
func mustFallBack(err error) bool {
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
}

// dial connects to the port. It returns when ctx is cancelled, but the connection attempt can continue.
func (f *forwarder) dial(ctx context.Context) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	dialed := make(chan result, 1)
	go func() {
		conn, err := f.connect()
		dialed <- result{conn, err}
	}()
	select {
	case r := <-dialed:
		return r.conn, r.err
	case <-ctx.Done():
	}
	go func() {
		if r := <-dialed; r.err == nil {
			_ = r.conn.Close()
		}
	}()
	return nil, context.Cause(ctx)
}

func (f *forwarder) connect() (net.Conn, error) {
	connection, _, err := f.dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, fmt.Errorf("forward a port to Pod %s: %w", f.pod, err)
	}
	conn, err := f.stream(connection)
	if err != nil {
		_ = connection.Close()
		return nil, fmt.Errorf("forward a port to Pod %s: %w", f.pod, err)
	}
	return conn, nil
}

// stream creates the two streams of a forwarded connection.
func (f *forwarder) stream(connection httpstream.Connection) (net.Conn, error) {
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(int(f.port)))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	failures, err := connection.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	_ = failures.Close() // nothing is written to it
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := connection.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	c := &conn{
		Stream: data, connection: connection, failed: make(chan struct{}),
		target: f.pod + ":" + headers.Get(corev1.PortHeader),
	}
	go func() {
		defer close(c.failed)
		const most = 1 << 10
		text, _ := io.ReadAll(io.LimitReader(failures, most))
		c.failure = strings.TrimSpace(string(text))
	}()
	return c, nil
}

// conn is a forwarded connection. Deadlines have no effect.
type conn struct {
	httpstream.Stream
	connection httpstream.Connection
	target     string
	failed     chan struct{} // closed when failure is set
	failure    string        // the error from the kubelet, or ""
}

// Read implements [net.Conn]. At the end of the stream, it returns the error from the kubelet.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Stream.Read(p)
	if n > 0 || err == nil {
		return n, err
	}
	select {
	case <-c.failed:
		if c.failure != "" {
			return 0, errors.New(c.failure)
		}
	case <-time.After(time.Second): // an error is sent before the stream ends
	}
	return 0, err
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	_ = c.Stream.Reset()
	return c.connection.Close()
}

type address string

func (address) Network() string  { return "portforward" }
func (a address) String() string { return string(a) }

// LocalAddr implements [net.Conn].
func (c *conn) LocalAddr() net.Addr { return address("local") }

// RemoteAddr implements [net.Conn].
func (c *conn) RemoteAddr() net.Addr { return address(c.target) }

// SetDeadline implements [net.Conn].
func (c *conn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements [net.Conn].
func (c *conn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements [net.Conn].
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
