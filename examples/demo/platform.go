package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
)

// platform runs the replicas of dynamic-controller, one of which leads. Replicas are identified by their names in the
// lease.
type platform interface {
	// kill sends SIGKILL to the replica.
	kill(ctx context.Context, replica string) error
	// revive returns when the killed replica is running again.
	revive(ctx context.Context, replica string) error
	// logs returns the logs of all replicas by name.
	logs() map[string]*logFile
	// stop stops the replicas that were started for the demonstration.
	stop(say printf) error
}

// logFile stores the log of a replica in memory and, if file is set, in a file.
type logFile struct {
	file *os.File // can be nil

	mu    sync.Mutex // guards the fields below
	lines []string
	rest  []byte // an incomplete line
}

func (l *logFile) Write(data []byte) (int, error) {
	l.mu.Lock()
	l.rest = append(l.rest, data...)
	for {
		text, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			break
		}
		l.lines, l.rest = append(l.lines, string(text)), rest
	}
	l.mu.Unlock()
	if l.file == nil {
		return len(data), nil
	}
	return l.file.Write(data)
}

// end returns the last lines.
func (l *logFile) end() string {
	const most = 15
	l.mu.Lock()
	defer l.mu.Unlock()
	var end strings.Builder
	for _, line := range l.lines[max(0, len(l.lines)-most):] {
		end.WriteString("  " + line + "\n")
	}
	end.Write(l.rest)
	return end.String()
}
