package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLockPIDFile_ExcludesOtherProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "component.pid")
	if err := os.WriteFile(path, []byte("123456789\n"), 0o600); err != nil { // A stale file of a killed process.
		t.Fatal(err)
	}
	held, err := lockPIDFile(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(os.Getpid())
	if data, err := os.ReadFile(path); err != nil || string(data) != pid+"\n" {
		t.Errorf("the file contains %q, error %v", data, err)
	}

	_, err = lockPIDFile(path, 0)
	if !errors.Is(err, errRunning) || !strings.Contains(err.Error(), pid) {
		t.Errorf("lock a locked file: got %v, want %v with the process ID", err, errRunning)
	}

	synctest.Test(t, func(t *testing.T) {
		var locked bool
		done := make(chan error, 1)
		go func() {
			second, err := lockPIDFile(path, time.Minute)
			if err == nil {
				locked = true
				second.release()
			}
			done <- err
		}()
		synctest.Wait()
		if locked {
			t.Error("the file was locked twice")
		}
		held.release()
		if err := <-done; err != nil {
			t.Errorf("wait for the release of a lock: %v", err)
		}
	})
}
