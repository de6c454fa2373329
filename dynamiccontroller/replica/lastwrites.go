package replica

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/lastwrites"
	"github.com/dynamic-controller/engine/internal/wire"
)

// recentFor is the time for which a write is remembered. A watch has usually received it long before.
const recentFor = 5 * time.Second

// maxRecorded is the maximum length of a response whose version is recorded. The API server rejects larger objects.
const maxRecorded = 4 << 20

// lastWrites remembers the newest version of each resource that the leaders of a shard have written recently: this
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

// recent returns the versions that the caches of the shard's next leader must contain.
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

// record returns the body of the response to a write. When it has been read, the version of the object in it is
// recorded.
func (w *lastWrites) record(r *http.Request, header http.Header, body io.ReadCloser) io.ReadCloser {
	resource, ok := resourceIn(r.URL.Path)
	contentType, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if !ok || err != nil || header.Get("Content-Encoding") != "" {
		return body
	}
	return &recordedBody{ReadCloser: body, done: func(data []byte) { w.add(resource, versionIn(contentType, data)) }}
}

// recordedBody calls done with its content when it has been read or closed.
type recordedBody struct {
	io.ReadCloser

	mu      sync.Mutex // guards the fields below, because Close can be called during Read
	content []byte
	done    func([]byte) // nil after it was called, and if the content is too long
}

func (b *recordedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	if b.done != nil {
		b.content = append(b.content, p[:n]...)
	}
	if len(b.content) > maxRecorded {
		b.content, b.done = nil, nil
	}
	b.mu.Unlock()
	if err != nil {
		b.finish()
	}
	return n, err
}

func (b *recordedBody) Close() error {
	b.finish()
	return b.ReadCloser.Close()
}

func (b *recordedBody) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != nil {
		b.done(b.content)
	}
	b.content, b.done = nil, nil
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

// The numbers of fields in messages of Kubernetes.
const (
	rawInUnknown        = 2 // runtime.Unknown.Raw
	metadataInObject    = 1 // ObjectMeta of all objects
	versionInObjectMeta = 6 // ObjectMeta.ResourceVersion
)

// protobufPrefix precedes an encoded runtime.Unknown.
const protobufPrefix = "k8s\x00"

// versionIn returns the resourceVersion of an encoded object, or an empty string.
func versionIn(contentType string, data []byte) string {
	if contentType == runtime.ContentTypeProtobuf {
		raw, ok := bytes.CutPrefix(data, []byte(protobufPrefix))
		if !ok {
			return ""
		}
		return string(fieldOf(fieldOf(fieldOf(raw, rawInUnknown), metadataInObject), versionInObjectMeta))
	}
	var object struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if json.Unmarshal(data, &object) != nil {
		return ""
	}
	return object.Metadata.ResourceVersion
}

func fieldOf(message []byte, number int) []byte {
	for m := wire.Read(message); m.Next(); {
		if int(m.Number) == number {
			return m.Value
		}
	}
	return nil
}
