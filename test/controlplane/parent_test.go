package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitOrphaned(t *testing.T) {
	const parent, other = 41, 1
	for _, c := range []struct {
		name    string
		pid     int
		getppid func(since time.Duration) int
		want    bool
		after   time.Duration // Upper bound. The context is cancelled after an hour.
	}{
		{
			name:    "a running parent is observed until the context is cancelled",
			pid:     parent,
			getppid: func(time.Duration) int { return parent },
			after:   time.Hour,
		},
		{
			name: "the exit of the parent is detected within a second",
			pid:  parent,
			getppid: func(since time.Duration) int {
				if since > time.Minute {
					return other
				}
				return parent
			},
			want:  true,
			after: time.Minute + time.Second,
		},
		{
			name:    "an earlier exit of the parent is detected immediately",
			pid:     parent,
			getppid: func(time.Duration) int { return other },
			want:    true,
		},
		{
			name:    "without a parent, the function waits until the context is cancelled",
			getppid: func(time.Duration) int { return other },
			after:   time.Hour,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				got := waitOrphaned(ctx, c.pid, func() int { return c.getppid(time.Since(start)) })
				if took := time.Since(start); got != c.want || took > c.after {
					t.Errorf("got %v after %v, want %v after at most %v", got, took, c.want, c.after)
				}
			})
		})
	}
}

func TestParentPID(t *testing.T) {
	for _, c := range []struct {
		name string
		env  string
		want int
		bad  bool
	}{
		{name: "the environment sets the parent", env: "41", want: 41},
		{name: "process 1 is not observed", env: "1", want: 0},
		{name: "an invalid ID is an error", env: "me", bad: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(parentEnv, c.env)
			got, err := parentPID()
			if got != c.want || (err != nil) != c.bad {
				t.Errorf("got %d, %v; want %d", got, err, c.want)
			}
		})
	}
	t.Run("the default is the actual parent", func(t *testing.T) {
		if got, err := parentPID(); err != nil || got != os.Getppid() {
			t.Errorf("got %d, %v; want %d", got, err, os.Getppid())
		}
	})
}

// A killed parent cannot notify its child.
func TestWaitOrphaned_DetectsAKilledParent(t *testing.T) {
	// Each process holds the write end of the pipe open until it exits.
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), helperEnv+"=parent")
	parent.Stdout = write
	parent.Stderr = os.Stderr
	err = parent.Start()
	write.Close()
	if err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(read)
	if line, err := out.ReadString('\n'); err != nil {
		t.Errorf("read %q from the child: %v", line, err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = parent.Wait() // The error reports the kill.
	if err := read.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := out.ReadByte(); err != io.EOF {
		t.Errorf("the child did not exit: %v", err)
	}
}
