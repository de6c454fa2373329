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
		after   time.Duration // at the latest; the context ends after an hour
	}{
		{
			name:    "a parent that lives is waited for until the context ends",
			pid:     parent,
			getppid: func(time.Duration) int { return parent },
			after:   time.Hour,
		},
		{
			name: "a parent that ends is noticed soon",
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
			name:    "a parent that ended before the first look is noticed at once",
			pid:     parent,
			getppid: func(time.Duration) int { return other },
			want:    true,
		},
		{
			name:    "without a parent to watch only the context ends it",
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
					t.Errorf("got %v after %v, want %v after %v at most", got, took, c.want, c.after)
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
		{name: "the one that the environment names", env: "41", want: 41},
		{name: "nobody outlives process 1", env: "1", want: 0},
		{name: "nonsense is an error", env: "me", bad: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(parentEnv, c.env)
			got, err := parentPID()
			if got != c.want || (err != nil) != c.bad {
				t.Errorf("got %d, %v; want %d", got, err, c.want)
			}
		})
	}
	t.Run("the real one otherwise", func(t *testing.T) {
		if got, err := parentPID(); err != nil || got != os.Getppid() {
			t.Errorf("got %d, %v; want %d", got, err, os.Getppid())
		}
	})
}

// A child ends although its parent had no chance to tell it.
func TestChildEndsWithAKilledParent(t *testing.T) {
	// Each process holds the pipe's other end as long as it lives.
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
		t.Errorf("the child said %q: %v", line, err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = parent.Wait() // killed
	if err := read.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := out.ReadByte(); err != io.EOF {
		t.Errorf("the child did not end: %v", err)
	}
}
