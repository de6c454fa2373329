package status

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Path is the path of the document.
const Path = "/status"

// A document is reused for minAge or for costFactor times its build time, whichever is longer. The cost of concurrent
// and frequent requests is therefore bounded.
const (
	minAge     = time.Second
	costFactor = 10
)

// Handler returns a handler that serves the document. Requests share a document until it is older than a second and
// older than costFactor times its build time.
func Handler(s *Sources) http.Handler { return &handler{build: s.Snapshot} }

// handler serves the document that build returns.
type handler struct {
	build func() *Replica

	mu         sync.Mutex // guards the fields below, and is held while a document is built
	compressed []byte     // kept until the next request after validUntil; much smaller than the document
	validUntil time.Time
}

// ServeHTTP implements [http.Handler].
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "the method must be GET", http.StatusMethodNotAllowed)
		return
	}
	compressed, err := h.document()
	if err != nil {
		http.Error(w, "the status cannot be encoded", http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", jsonType)
	header.Set("Cache-Control", "no-store")
	header.Set("Vary", "Accept-Encoding")
	if acceptsGzip(r) {
		header.Set("Content-Encoding", "gzip")
		header.Set("Content-Length", strconv.Itoa(len(compressed)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(compressed)
		}
		return
	}
	if r.Method == http.MethodGet {
		if reader, err := gzip.NewReader(bytes.NewReader(compressed)); err == nil { // it has just been written
			_, _ = io.Copy(w, reader)
		}
	}
}

// document returns the compressed document. The result must not be modified.
func (h *handler) document() ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	began := time.Now()
	if began.Before(h.validUntil) {
		return h.compressed, nil
	}
	var packed bytes.Buffer
	writer, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	plain, err := json.Marshal(h.build())
	if err != nil {
		return nil, err
	}
	_, _ = writer.Write(plain) // a buffer returns no errors
	_ = writer.Close()
	h.compressed = packed.Bytes()
	now := time.Now()
	h.validUntil = now.Add(max(minAge, costFactor*now.Sub(began)))
	return h.compressed, nil
}

// acceptsGzip reports whether a client accepts gzip. Weights are ignored, except for 0, which means that it does not.
func acceptsGzip(r *http.Request) bool {
	for each := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, weight, _ := strings.Cut(strings.ReplaceAll(each, " ", ""), ";")
		if name == "gzip" {
			return strings.Trim(strings.TrimPrefix(weight, "q="), "0.") != "" || weight == ""
		}
	}
	return false
}
