package history

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
)

// Log is one process' end of the log. Its methods may be called concurrently.
type Log struct {
	file *os.File
	who  string
}

// Open opens the log in a file, which it makes if there is none, for the events of one process.
func Open(path, who string) (*Log, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	return &Log{file: file, who: who}, nil
}

// Add writes the event, as of now if it has no time, and of this process if it names none. It panics if it cannot: a log
// that lacks events proves nothing.
func (l *Log) Add(e Event) {
	if e.At == 0 {
		e.At = Now()
	}
	if e.Who == "" {
		e.Who = l.who
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = l.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Errorf("write to the log: %w", err))
	}
}

// Close closes the file.
func (l *Log) Close() error { return l.file.Close() }

// Reader reads a log that grows.
type Reader struct {
	path   string
	read   int64
	events []Event
}

// NewReader reads nothing yet.
func NewReader(path string) *Reader { return &Reader{path: path} }

// Events returns all that has been written by now, in the order of time. The caller must not change it, and what a later
// call returns replaces it.
func (r *Reader) Events() ([]Event, error) {
	fail := func(err error) ([]Event, error) { return nil, fmt.Errorf("read the log: %w", err) }
	file, err := os.Open(r.path)
	if err != nil {
		return fail(err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.NewSectionReader(file, r.read, 1<<62))
	if err != nil {
		return fail(err)
	}
	for {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		if !whole {
			break
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return fail(fmt.Errorf("%w: %s", err, line))
		}
		r.events = append(r.events, e)
		r.read += int64(len(line)) + 1
		data = rest
	}
	slices.SortStableFunc(r.events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return r.events, nil
}
