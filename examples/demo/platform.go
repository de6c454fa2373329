package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
)

// platform is what runs the replicas of dynamic-controller, of which one leads. They are told apart by the names that
// they have in the lease.
type platform interface {
	// kill ends the replica without warning.
	kill(ctx context.Context, replica string) error
	// revive returns once the replica that was killed runs again.
	revive(ctx context.Context, replica string) error
	// logs are those of all replicas, by name.
	logs() map[string]*logFile
	// stop ends what was started for the demonstration.
	stop(say func(string, ...any)) error
}

// logFile keeps what a replica writes, in a file and in mind.
type logFile struct {
	file *os.File // nil if it is only kept in mind

	mu    sync.Mutex // guards what follows
	lines []string
	rest  []byte // of a line that is not whole
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

// end is what the replica wrote last.
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
