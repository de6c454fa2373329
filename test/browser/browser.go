//go:build browser

package browser

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// timeout limits each command, and each wait for a condition.
const timeout = 30 * time.Second

// Find returns the path of Chromium: $CHROMIUM, or the first known name in $PATH.
func Find() (string, error) {
	if path := os.Getenv("CHROMIUM"); path != "" {
		return exec.LookPath(path)
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no Chromium in $PATH: install it, for example with \"apt-get install chromium\", " +
		"or set $CHROMIUM to its path")
}

// Browser is a running Chromium. It is safe for concurrent use.
type Browser struct {
	t    testing.TB
	cmd  *exec.Cmd
	to   io.WriteCloser
	done chan struct{} // closed when read has returned

	mu      sync.Mutex // guards the fields below, and writes
	last    int
	pending map[int]chan message
	events  map[string]func(message) // by session
}

// message is a command, a response or an event.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// Start starts Chromium. It is stopped at the end of the test.
func Start(t testing.TB) *Browser {
	t.Helper()
	path, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	commandsIn, commandsOut, err1 := os.Pipe()
	answersIn, answersOut, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--no-default-browser-check", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--disable-extensions", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe")
	cmd.ExtraFiles = []*os.File{commandsIn, answersOut} // file descriptors 3 and 4
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = commandsIn.Close(), answersOut.Close()
	b := &Browser{
		t: t, cmd: cmd, to: commandsOut, done: make(chan struct{}),
		pending: map[int]chan message{}, events: map[string]func(message){},
	}
	go b.read(answersIn)
	t.Cleanup(b.stop)
	return b
}

// stop closes Chromium and waits for it to exit.
func (b *Browser) stop() {
	if _, err := b.call("", "Browser.close", nil); err != nil {
		_ = b.cmd.Process.Kill()
	}
	kill := time.AfterFunc(timeout, func() { _ = b.cmd.Process.Kill() })
	_ = b.cmd.Wait()
	kill.Stop()
	_ = b.to.Close()
	<-b.done
}

// read dispatches messages until Chromium closes the pipe.
func (b *Browser) read(from io.ReadCloser) {
	defer close(b.done)
	defer from.Close()
	reader := bufio.NewReader(from)
	for {
		data, err := reader.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(data[:len(data)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		waiting, event := b.pending[m.ID], b.events[m.Session]
		delete(b.pending, m.ID)
		b.mu.Unlock()
		switch {
		case m.ID != 0 && waiting != nil:
			waiting <- m
		case event != nil:
			event(m)
		}
	}
}

// call sends a command and returns its result.
func (b *Browser) call(session, method string, params any) (json.RawMessage, error) {
	answer := make(chan message, 1)
	b.mu.Lock()
	b.last++
	data, err := json.Marshal(message{ID: b.last, Session: session, Method: method, Params: params})
	if err == nil {
		b.pending[b.last] = answer
		_, err = b.to.Write(append(data, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			return nil, fmt.Errorf("%s: %s", method, m.Error.Message)
		}
		return m.Result, nil
	case <-b.done:
		return nil, fmt.Errorf("%s: Chromium has exited", method)
	case <-time.After(timeout):
		return nil, fmt.Errorf("%s: no answer within %s", method, timeout)
	}
}
