package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr/funcr"
)

// brokenListener fails once, then accepts one connection, and is then closed.
type brokenListener struct {
	net.Listener
	conn  net.Conn
	calls int
}

func (l *brokenListener) Addr() net.Addr { return &net.TCPAddr{} }
func (l *brokenListener) Close() error   { return nil }

func (l *brokenListener) Accept() (net.Conn, error) {
	l.calls++
	switch l.calls {
	case 1:
		return nil, syscall.EMFILE
	case 2:
		return l.conn, nil
	}
	return nil, net.ErrClosed
}

// All other messages are logged at V(1), because clients can trigger them at any time.
func TestServe_LogsPanicsAndFailedAcceptsAsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged []string
		log := funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{Verbosity: 1})
		client, server := net.Pipe()
		go func() {
			defer client.Close()
			_, _ = client.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
			_, _ = io.Copy(io.Discard, client)
		}()
		err := serve(t.Context(), log, &brokenListener{conn: server}, http.HandlerFunc(
			func(http.ResponseWriter, *http.Request) { panic("on purpose") }))
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("got error %v", err)
		}
		synctest.Wait()
		_, _ = errorLog{log}.Write([]byte("http: TLS handshake error from 127.0.0.1:1: EOF\n"))
		for i, want := range []string{
			`"msg"="Connection not accepted" "error"="http: Accept error: too many open files; retrying in 5ms"`,
			`"msg"="Request panicked" "error"="http: panic serving pipe: on purpose`,
			`"level"=1 "msg"="Connection failed" "problem"="http: TLS handshake error from 127.0.0.1:1: EOF"`,
		} {
			if len(logged) != 3 || !strings.HasPrefix(logged[i], want) {
				t.Fatalf("got %q, want %s", logged, want)
			}
		}
	})
}

func TestEndpoints_AddressInUseIsReported(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	a := newAPI(t)
	for _, flag := range []string{flagHealth, flagMetrics, flagWebhook} {
		p := start(t, runArgs(a.cluster.Kubeconfig(), "--"+flagHealth, "0", "--"+flag, taken.Addr().String())...)
		if code := p.wait(); code != 1 || !strings.Contains(p.output(),
			"dynamic-controller: --"+flag+": listen tcp "+taken.Addr().String()+": bind: address already in use") {
			t.Errorf("got %d, %q", code, p.output())
		}
	}
}
