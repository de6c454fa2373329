package replica

import (
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/lastwrites"
)

// recentFor is the time for which a write is remembered. A watch has usually received it long before.
const recentFor = 5 * time.Second

// lastWrites remembers the newest version of each resource that the holders of a Lease have written recently: this
// replica, or the one that has released the Lease. A nil lastWrites remembers nothing.
type lastWrites struct {
	mu     sync.Mutex // guards newest
	newest map[schema.GroupResource]lastWrite
}

type lastWrite struct {
	version uint64
	at      time.Time
}

func (w *lastWrites) add(resource schema.GroupResource, resourceVersion string) {
	version, ok := lastwrites.Number(resourceVersion)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.newest == nil {
		w.newest = map[schema.GroupResource]lastWrite{}
	}
	w.newest[resource] = lastWrite{max(version, w.newest[resource].version), time.Now()}
}

// replace forgets all writes, and remembers those of another replica.
func (w *lastWrites) replace(versions lastwrites.Versions) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.newest = make(map[schema.GroupResource]lastWrite, len(versions))
	for resource, version := range versions {
		w.newest[resource] = lastWrite{version, time.Now()}
	}
}

// recent returns the versions that the caches of the next leader must contain.
func (w *lastWrites) recent() lastwrites.Versions {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	recent := lastwrites.Versions{}
	for resource, last := range w.newest {
		if time.Since(last.at) < recentFor {
			recent[resource] = last.version
		}
	}
	return recent
}

// record returns the body of the response to a write. While the body is read, the version of the object in it is
// recorded.
func (w *lastWrites) record(r *http.Request, header http.Header, body io.ReadCloser) io.ReadCloser {
	resource, ok := resourceIn(r.URL.Path)
	contentType, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if !ok || err != nil || header.Get("Content-Encoding") != "" {
		return body
	}
	var reader versionReader = &jsonVersion{}
	if contentType == runtime.ContentTypeProtobuf {
		reader = &protobufVersion{}
	}
	return &recordedBody{ReadCloser: body, reader: reader, add: func(version string) { w.add(resource, version) }}
}

// recordedBody calls add with the version of the object that is read from it.
type recordedBody struct {
	io.ReadCloser
	add func(version string)

	mu     sync.Mutex    // guards reader, because Close can be called during Read
	reader versionReader // nil after add was called, or the body was read or closed
}

func (b *recordedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.received(p[:n], err != nil)
	return n, err
}

func (b *recordedBody) Close() error {
	b.received(nil, true)
	return b.ReadCloser.Close()
}

func (b *recordedBody) received(data []byte, last bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reader == nil {
		return
	}
	if version, found := b.reader.read(data, last); found {
		b.add(version)
		last = true
	}
	if last {
		b.reader = nil
	}
}

// resourceIn returns the resource in the path of a request, which can begin with the path of a proxy.
func resourceIn(path string) (schema.GroupResource, bool) {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	for i, segment := range segments {
		var gr schema.GroupResource
		var rest []string
		switch {
		case segment == "api" && len(segments) > i+2:
			rest = segments[i+2:]
		case segment == "apis" && len(segments) > i+3:
			gr.Group, rest = segments[i+1], segments[i+3:]
		default:
			continue
		}
		isSubresource := func(name string) bool { return gr.Group == "" && (name == "status" || name == "finalize") }
		if rest[0] == "namespaces" && len(rest) > 2 && !isSubresource(rest[2]) {
			rest = rest[2:]
		}
		gr.Resource = rest[0]
		return gr, true
	}
	return schema.GroupResource{}, false
}
