package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestPIDFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "part.pid")
	if err := os.WriteFile(path, []byte("123456789\n"), 0o600); err != nil { // left behind by a killed process
		t.Fatal(err)
	}
	held, err := lockPIDFile(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(os.Getpid())
	if data, err := os.ReadFile(path); err != nil || string(data) != pid+"\n" {
		t.Errorf("the file says %q, %v", data, err)
	}

	_, err = lockPIDFile(path, 0)
	if !errors.Is(err, errRunning) || !strings.Contains(err.Error(), pid) {
		t.Errorf("held: got %v", err)
	}

	// A holder that ends is waited for.
	taken := make(chan error)
	go func() {
		second, err := lockPIDFile(path, time.Minute)
		if err == nil {
			second.release()
		}
		taken <- err
	}()
	held.release()
	if err := <-taken; err != nil {
		t.Errorf("after its release: %v", err)
	}
}
