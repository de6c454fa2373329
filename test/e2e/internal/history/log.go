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

// Log writes the events of one process. Its methods can be called concurrently.
type Log struct {
	file    *os.File
	process string
}

// Open opens a log for the events of one process. It creates the file if it does not exist.
func Open(path, process string) (*Log, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	return &Log{file: file, process: process}, nil
}

// Add writes an event. At defaults to the current time, and Process defaults to the name of the log's process. Add
// panics if the write fails, because an incomplete log cannot be checked.
func (l *Log) Add(e Event) {
	if e.At == 0 {
		e.At = Now()
	}
	if e.Process == "" {
		e.Process = l.process
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

// Reader reads a log that is still being written.
type Reader struct {
	path   string
	read   int64
	events []Event
}

// NewReader returns a Reader of the file. It does not open the file.
func NewReader(path string) *Reader { return &Reader{path: path} }

// Events returns all events that have been written so far, ordered by time. The caller must not modify the result,
// which is valid only until the next call.
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
	known := len(r.events)
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
	r.sort(known)
	return r.events, nil
}

// sort orders the events by time. The first known events are already ordered. Only a few of them can be later than new
// ones, so that reading a long log repeatedly is cheap.
func (r *Reader) sort(known int) {
	added := r.events[known:]
	if len(added) == 0 {
		return
	}
	byTime := func(a, b Event) int { return cmp.Compare(a.At, b.At) }
	first := slices.MinFunc(added, byTime)
	from, _ := slices.BinarySearchFunc(r.events[:known], first.At+1, func(e Event, at Time) int {
		return cmp.Compare(e.At, at)
	})
	slices.SortStableFunc(r.events[from:], byTime)
}
