package bench

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// scriptedServer is a server on loopback that answers lists, streaming lists and watches of a fixture's types like an
// API server. Its objects are made up as they are sent, and never change. It answers in JSON, and does not page lists.
type scriptedServer struct {
	fixture    fixture
	types      map[string]scriptedType // By the path of their requests.
	text       string                  // The source of the objects' payload.
	bookmarks  time.Duration           // The interval between the bookmarks of a watch.
	phases     []phase
	api        *httptest.Server // Replaced when the server is restarted.
	control    *httptest.Server // Runs the phases; see measureRequests. It is not affected by cuts and restarts.
	kubeconfig string

	requests    atomic.Int64 // Lists, streaming lists and watches.
	lists       atomic.Int64 // Lists and streaming lists.
	connections atomic.Int64
	watches     atomic.Int64 // Watches that are open.
}

type scriptedType struct {
	gvr            schema.GroupVersionResource
	index, objects int
}

// phase is a part of a measurement in which requests are counted.
type phase struct {
	name  string
	begin func(*scriptedServer) error
	time  time.Duration // How long requests are counted after begin has returned. Those during begin are also counted.
}

const (
	// scriptedVersion is the resourceVersion of all lists and bookmarks.
	scriptedVersion = 1_000_000_000
	// maxStreams is the number of concurrent requests in a connection that kube-apiserver allows.
	maxStreams = 100
)

// startScripted starts a server. It is closed at the end of the test.
func startScripted(t testing.TB, f fixture, phases []phase) *scriptedServer {
	t.Helper()
	s := &scriptedServer{fixture: f, types: map[string]scriptedType{}, phases: phases, bookmarks: time.Minute}
	for i, gvr := range f.types() {
		path := strings.Join([]string{"/apis", gvr.Group, gvr.Version, gvr.Resource}, "/")
		s.types[path] = scriptedType{gvr: gvr, index: i, objects: f.Objects[i]}
	}
	s.text = newRandom(0).word(1<<16, 1<<16)
	if err := s.listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	s.control = httptest.NewServer(http.HandlerFunc(s.runPhases))
	t.Cleanup(s.control.Close)
	s.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	c := clientcmdapi.NewConfig()
	c.Clusters["scripted"] = &clientcmdapi.Cluster{
		Server: s.api.URL, CertificateAuthorityData: pem.EncodeToMemory(
			&pem.Block{Type: "CERTIFICATE", Bytes: s.api.Certificate().Raw}),
	}
	c.Contexts["scripted"], c.CurrentContext = &clientcmdapi.Context{Cluster: "scripted"}, "scripted"
	if err := clientcmd.WriteToFile(*c, s.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *scriptedServer) listen(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	s.api = &httptest.Server{Listener: listener, EnableHTTP2: true, Config: &http.Server{
		Handler:  http.HandlerFunc(s.answer),
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog: log.New(io.Discard, "", 0), // Connections that are cut.
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				s.connections.Add(1)
			}
		},
	}}
	s.api.StartTLS()
	return nil
}

func (s *scriptedServer) stop() {
	_ = s.api.Listener.Close()
	s.api.CloseClientConnections()
	s.api.Close()
}

// cut closes all connections.
func (s *scriptedServer) cut() error {
	s.api.CloseClientConnections()
	return nil
}

// restart closes all connections, and refuses connections for some time.
func (s *scriptedServer) restart(down time.Duration) error {
	address := s.api.Listener.Addr().String()
	s.stop()
	time.Sleep(down)
	return s.listen(address)
}

// runPhases runs the phases, and answers with the numbers of requests and connections in each of them.
func (s *scriptedServer) runPhases(w http.ResponseWriter, r *http.Request) {
	m := measures{}
	for _, p := range s.phases {
		requests, lists, connections := s.requests.Load(), s.lists.Load(), s.connections.Load()
		if err := p.begin(s); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		select {
		case <-time.After(p.time):
		case <-r.Context().Done():
			return
		}
		types := float64(len(s.types))
		m = append(m,
			measure{p.name + "-requests/type", float64(s.requests.Load()-requests) / types},
			measure{p.name + "-lists/type", float64(s.lists.Load()-lists) / types},
			measure{p.name + "-watching/type", float64(s.watches.Load()) / types},
			measure{p.name + "-connections", float64(s.connections.Load() - connections)},
		)
	}
	_ = json.NewEncoder(w).Encode(m) // The client notices an incomplete response.
}

// answer answers the requests of clients.
func (s *scriptedServer) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	t, known := s.types[r.URL.Path]
	if !known { // The request that each job sends first.
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"List","metadata":{},"items":[]}`)
		return
	}
	s.requests.Add(1)
	version, kind := t.gvr.GroupVersion().String(), kindOf(t.gvr)
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
		version, kind = "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	a := answer{ResponseWriter: w, server: s, of: t, typeMeta: fmt.Sprintf(`"apiVersion":%q,"kind":%q`, version, kind)}
	query := r.URL.Query()
	if query.Get("watch") != "true" {
		s.lists.Add(1)
		a.printf(`{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"%d"},"items":[`,
			version, kind+"List", scriptedVersion)
		a.objects("", "", ",")
		a.printf("]}")
		return
	}
	if query.Get("sendInitialEvents") == "true" {
		s.lists.Add(1)
		a.objects(`{"type":"ADDED","object":`, "}\n", "")
		a.bookmark(`,"annotations":{"k8s.io/initial-events-end":"true"}`)
	}
	timeout, _ := strconv.Atoi(query.Get("timeoutSeconds")) // All clients set it.
	a.watch(r, time.Duration(timeout)*time.Second)
}

// answer is the response to a request.
type answer struct {
	http.ResponseWriter
	server   *scriptedServer
	of       scriptedType
	typeMeta string // Of the objects, as the client has asked.
}

// printf writes to the response. An error means that the connection is closed.
func (a answer) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(a.ResponseWriter, format, args...)
}

func (a answer) flush() { _ = http.NewResponseController(a.ResponseWriter).Flush() }

// objects writes all objects.
func (a answer) objects(before, after, separator string) {
	const bufferSize = 32 << 10
	var b []byte
	for n := range a.of.objects {
		if n > 0 {
			b = append(b, separator...)
		}
		b = append(a.object(append(b, before...), n), after...)
		if len(b) < bufferSize && n < a.of.objects-1 {
			continue
		}
		if _, err := a.Write(b); err != nil {
			return
		}
		b = b[:0]
	}
}

// object appends the nth object. It consists of metadata.
func (a answer) object(b []byte, n int) []byte {
	const end = `"}}}`
	f, start := a.server.fixture, len(b)
	b = fmt.Appendf(b, `{%s,"metadata":{"name":%q,"namespace":%q,"uid":"%08x-0000-4000-8000-%012x",`+
		`"resourceVersion":"%d","generation":1,"creationTimestamp":"2026-01-01T00:00:00Z",`+
		`"annotations":{"bench.example.com/text":"`,
		a.typeMeta, f.name(n), namespace, a.of.index, n, n+1)
	if missing := f.Size - (len(b) - start) - len(end); missing > 0 {
		first := n % (len(a.server.text) - missing)
		b = append(b, a.server.text[first:first+missing]...)
	}
	return append(b, end...)
}

func (a answer) bookmark(annotations string) {
	a.printf(`{"type":"BOOKMARK","object":{%s,"metadata":{"resourceVersion":"%d"%s}}}`+"\n",
		a.typeMeta, scriptedVersion, annotations)
}

// watch sends bookmarks until the timeout.
func (a answer) watch(r *http.Request, timeout time.Duration) {
	a.flush() // Also sends the headers.
	a.server.watches.Add(1)
	defer a.server.watches.Add(-1)
	end, ticker := time.NewTimer(timeout), time.NewTicker(a.server.bookmarks)
	defer end.Stop()
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			a.bookmark("")
			a.flush()
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}
