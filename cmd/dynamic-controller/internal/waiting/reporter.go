package waiting

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	first = time.Second     // The time from the start of a command to the first report.
	again = 5 * time.Second // The time between two reports.
)

// Reporter writes which request a command is waiting for. The first line is written a second after Start, and another
// one every five seconds, if a request is pending at that time. Its methods can be called concurrently.
type Reporter struct {
	w       io.Writer
	started time.Time
	done    chan struct{}
	running sync.WaitGroup

	mu      sync.Mutex // Guards pending.
	pending []*http.Request
}

// Start returns a Reporter that writes to w until Stop is called.
func Start(w io.Writer) *Reporter {
	r := &Reporter{w: w, started: time.Now(), done: make(chan struct{})}
	r.running.Go(r.run)
	return r
}

// Stop ends the reports. After it has returned, nothing is written.
func (r *Reporter) Stop() {
	close(r.done)
	r.running.Wait()
}

// Wrap returns a RoundTripper that records the pending requests. It can be passed to the Wrap method of a rest.Config.
func (r *Reporter) Wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		r.add(request)
		defer r.remove(request)
		return next.RoundTrip(request)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

func (r *Reporter) add(request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = append(r.pending, request)
}

func (r *Reporter) remove(request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, each := range r.pending {
		if each == request {
			r.pending = append(r.pending[:i], r.pending[i+1:]...)
			return
		}
	}
}

func (r *Reporter) run() {
	timer := time.NewTimer(first)
	defer timer.Stop()
	for {
		select {
		case <-r.done:
			return
		case <-timer.C:
			r.report()
			timer.Reset(again)
		}
	}
}

// report writes the oldest pending request. The query is omitted.
func (r *Reporter) report() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending) == 0 {
		return
	}
	oldest := r.pending[0]
	fmt.Fprintf(r.w, "waiting for %s://%s: %s %s (%s)\n", oldest.URL.Scheme, oldest.URL.Host, oldest.Method,
		oldest.URL.Path, time.Since(r.started).Round(time.Second))
}
