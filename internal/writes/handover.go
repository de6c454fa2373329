package writes

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Call contains the writes of a handler call.
type Call struct {
	// Resource and Object are the type of the reconciled object, and its namespace and name as in the caches.
	Resource schema.GroupResource `json:"resource"`
	Object   string               `json:"object"`
	Writes   []Write              `json:"writes,omitempty"`
	Unknown  []Target             `json:"unknown,omitempty"` // requests with unknown outcomes
	// Noted is true if another process has made the call.
	Noted bool `json:"-"`
}

// size returns the number of values in the call, which determines how much memory it takes.
func (c Call) size() int {
	n := 1 + len(c.Writes) + len(c.Unknown)
	for _, w := range c.Writes {
		n += len(w.States)
	}
	return n
}

// NoteAnnotation is the annotation of a released Lease that contains the [Note] of its last holder. A Lease that is
// held does not have it.
const NoteAnnotation = "dynamic-controller.github.io/last-writes"

// Note contains the writes of recent calls, oldest call first.
type Note []Call

const (
	// maxSize limits the size of a note and of a ledger, in values; see Call.size. A value takes about 150 bytes.
	maxSize = 16 << 10
	// maxDecoded limits the length of a decoded note in bytes.
	maxDecoded = 8 << 20
	// maxPart is the number of writes after which a call is divided, so that a note can contain a part of a long one.
	maxPart = 256
)

// Encode returns the note as text: JSON, compressed with gzip, in base64. If the text would be longer than the limit in
// bytes, the oldest calls are left out. Encode returns their number. The text is empty if there are no calls.
func (n Note) Encode(limit int) (text string, left int) {
	if len(n) == 0 {
		return "", 0
	}
	if text = n.encode(); len(text) <= limit {
		return text, 0
	}
	left = sort.Search(len(n), func(left int) bool { return len(n[left:].encode()) <= limit })
	if left == len(n) {
		return "", left
	}
	return n[left:].encode(), left
}

func (n Note) encode() string {
	var text bytes.Buffer // to which writes never fail
	encoder := base64.NewEncoder(base64.StdEncoding, &text)
	z := gzip.NewWriter(encoder)
	_ = json.NewEncoder(z).Encode(n.short())
	_ = z.Close()
	_ = encoder.Close()
	return text.String()
}

// short returns the note without UIDs, which cannot be compressed, unless an object is gone. While a cache contains
// another object with the same name, it can then count as one that lacks the write until it has reached its version.
func (n Note) short() Note {
	n = slices.Clone(n)
	for i, c := range n {
		n[i].Writes = slices.Clone(c.Writes)
		for j, w := range c.Writes {
			if !w.Gone {
				n[i].Writes[j].UID = ""
			}
		}
	}
	return n
}

// ParseNote returns the note in the result of [Note.Encode]. It returns an error if the note is too large.
func ParseNote(text string) (Note, error) {
	if text == "" {
		return nil, nil
	}
	n, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("parse the last writes: %w", err)
	}
	return n, nil
}

func decode(text string) (n Note, err error) {
	z, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(text)))
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(io.LimitReader(z, maxDecoded))
	if start, err := decoder.Token(); err != nil || start != json.Delim('[') {
		return nil, errors.Join(errors.New("there is no list of calls"), err)
	}
	for size := 0; decoder.More(); {
		call := Call{Noted: true}
		if err := decoder.Decode(&call); err != nil {
			return nil, err
		}
		if size += call.size(); size > maxSize {
			return nil, fmt.Errorf("there are more than %d values", maxSize)
		}
		n = append(n, call)
	}
	_, err = decoder.Token()
	return n, err
}

// recentFor is the time for which a call is remembered. It is the default of Config.MaxWriteLag, after which a cache
// may lack a write anyway.
const recentFor = 10 * time.Second

// Ledger remembers the writes of recent calls: those of this process, and those in the note of another one. If they
// are too many, it forgets the oldest ones. It is safe for concurrent use. A nil Ledger remembers nothing.
type Ledger struct {
	// Server is the API server to which the calls have written; see [ServerOf]. It is empty if this is not known.
	Server string

	mu    sync.Mutex                   // guards the fields below
	calls []*datedCall                 // oldest first
	size  int                          // of all calls
	types map[schema.GroupResource]int // number of calls by type
	timer *time.Timer                  // nil if there are no calls
}

type datedCall struct {
	Call
	at time.Time
}

// Add adds a call, unless it has written nothing.
func (l *Ledger) Add(c Call) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	part := c
	part.Unknown = nil
	for part.Writes = range slices.Chunk(c.Writes, maxPart) {
		l.addLocked(part)
	}
	part.Writes = nil
	for part.Unknown = range slices.Chunk(c.Unknown, maxPart) {
		l.addLocked(part)
	}
}

func (l *Ledger) addLocked(c Call) {
	if l.types == nil {
		l.types = map[schema.GroupResource]int{}
	}
	l.calls = append(l.calls, &datedCall{c, time.Now()})
	l.size += c.size()
	l.types[c.Resource]++
	for l.size > maxSize {
		l.removeOldestLocked()
	}
	if l.timer == nil {
		l.timer = time.AfterFunc(recentFor, l.forget)
	}
}

func (l *Ledger) removeOldestLocked() {
	oldest := l.calls[0].Call
	l.calls[0] = nil
	l.calls = l.calls[1:]
	l.size -= oldest.size()
	if l.types[oldest.Resource]--; l.types[oldest.Resource] == 0 {
		delete(l.types, oldest.Resource)
	}
}

// Replace forgets all calls, and remembers those in the note of another process.
func (l *Ledger) Replace(n Note) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls, l.size, l.types = nil, 0, nil
	for _, c := range n {
		c.Noted = true
		l.addLocked(c)
	}
}

// Recent returns the calls of the last ten seconds.
func (l *Ledger) Recent() (n Note) {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeOldLocked()
	for _, c := range l.calls {
		n = append(n, c.Call)
	}
	return n
}

// CallsFor returns the recent calls for objects of a type.
func (l *Ledger) CallsFor(resource schema.GroupResource) (calls []Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeOldLocked()
	if l.types[resource] == 0 {
		return nil
	}
	for _, c := range l.calls {
		if c.Resource == resource {
			calls = append(calls, c.Call)
		}
	}
	return calls
}

// removeOldLocked removes the calls that are not recent any more.
func (l *Ledger) removeOldLocked() {
	for len(l.calls) > 0 && time.Since(l.calls[0].at) >= recentFor {
		l.removeOldestLocked()
	}
}

// forget removes calls that are not recent any more, so that they occupy no memory.
func (l *Ledger) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeOldLocked()
	if len(l.calls) == 0 {
		l.calls, l.timer = nil, nil
		return
	}
	l.timer.Reset(time.Until(l.calls[0].at.Add(recentFor)))
}

type ledgerKey struct{}

// WithLedger returns a context that carries a ledger.
func WithLedger(ctx context.Context, l *Ledger) context.Context {
	return context.WithValue(ctx, ledgerKey{}, l)
}

// LedgerFrom returns the ledger that a context carries, or nil.
func LedgerFrom(ctx context.Context) *Ledger {
	l, _ := ctx.Value(ledgerKey{}).(*Ledger)
	return l
}
