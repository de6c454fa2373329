package restmapper

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// largeCRDs is an API server that serves many CRDs with large schemas, and no other types. It does not hold all CRDs in
// memory.
type largeCRDs struct {
	count     int
	schemas   []byte
	watchList bool // streaming lists are supported
}

const syncedRevision = "5000"

func (l *largeCRDs) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	isWatch, isInitial := query.Get("watch") != "", query.Get("sendInitialEvents") != ""
	switch {
	case r.URL.Path == "/api", r.URL.Path == "/apis":
		w.Header().Set("Content-Type", discovery.AcceptV2)
		_, _ = w.Write([]byte(`{"kind":"APIGroupDiscoveryList","items":[]}`))
	case !strings.HasSuffix(r.URL.Path, "/customresourcedefinitions"):
		http.NotFound(w, r)
	case isInitial && !l.watchList:
		http.Error(w, "streaming lists are not supported", http.StatusUnprocessableEntity)
	case isWatch:
		for i := 0; isInitial && i < l.count; i++ {
			fmt.Fprint(w, `{"type":"ADDED","object":`)
			l.write(w, i)
			fmt.Fprintln(w, `}`)
		}
		fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"kind":"CustomResourceDefinition",
			"apiVersion":"apiextensions.k8s.io/v1","metadata":{"resourceVersion":"`+syncedRevision+`",
			"annotations":{"k8s.io/initial-events-end":"true"}}}}`)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		fmt.Fprint(w, `{"kind":"CustomResourceDefinitionList","apiVersion":"apiextensions.k8s.io/v1",
			"metadata":{"resourceVersion":"`+syncedRevision+`"},"items":[`)
		for i := range l.count {
			if i > 0 {
				fmt.Fprint(w, ",")
			}
			l.write(w, i)
		}
		fmt.Fprint(w, "]}")
	}
}

// write writes a CRD.
func (l *largeCRDs) write(w http.ResponseWriter, i int) {
	fmt.Fprintf(w, `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1",
		"metadata":{"name":"widgets.g%d.example.com","uid":"uid-%d","resourceVersion":"%d"},
		"spec":{"group":"g%d.example.com","scope":"Namespaced","versions":[
		{"name":"v2","served":true},{"name":"v1","served":true,"schema":`, i, i, i+1, i)
	_, _ = w.Write(l.schemas)
	fmt.Fprint(w, `}]},"status":{"acceptedNames":{"plural":"widgets","singular":"widget","kind":"Widget",
		"listKind":"WidgetList","shortNames":["w"]},"conditions":[{"type":"Established","status":"True"}]}}`)
}

// largeSchema returns a schema of 64 kB.
func largeSchema() []byte {
	properties := make([]string, 600)
	for i := range properties {
		properties[i] = fmt.Sprintf(`"property%d":{"type":"string","description":"%s"}`, i, strings.Repeat("words ", 10))
	}
	return fmt.Appendf(nil, `{"openAPIV3Schema":{"type":"object","properties":{%s}}}`, strings.Join(properties, ","))
}

// BenchmarkFirstSync measures the heap during and after the first sync with 2,000 CRDs of 64 kB each. The peak includes
// garbage.
func BenchmarkFirstSync(b *testing.B) {
	for _, watchList := range []bool{true, false} {
		b.Run(fmt.Sprintf("watch-list=%v", watchList), func(b *testing.B) {
			crds := &largeCRDs{count: 2000, schemas: largeSchema(), watchList: watchList}
			server := httptest.NewServer(crds)
			defer server.Close()
			defer server.CloseClientConnections()
			for b.Loop() {
				before := heap()
				m, err := New(logr.Discard(), &rest.Config{Host: server.URL, QPS: -1})
				if err != nil {
					b.Fatal(err)
				}
				peak := peakHeap()
				ctx, cancel := context.WithCancel(b.Context())
				var runs sync.WaitGroup
				runs.Go(func() { _ = m.Run(ctx) })
				last := schema.GroupKind{Group: fmt.Sprintf("g%d.example.com", crds.count-1), Kind: "Widget"}
				if _, err := m.WaitForMapping(ctx, last); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(peak()-before)/(1<<20), "MB-peak")
				b.ReportMetric(float64(heap()-before)/(1<<20), "MB-at-rest")
				b.ReportMetric(float64(len(crds.schemas)*crds.count)/(1<<20), "MB-of-schemas")
				cancel()
				runs.Wait()
			}
		})
	}
}

// peakHeap samples the size of the heap until peak is called. The function peak returns the largest sample.
func peakHeap() (peak func() int64) {
	stop, result := make(chan struct{}), make(chan int64)
	go func() {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		for largest := int64(0); ; {
			metrics.Read(sample)
			largest = max(largest, int64(sample[0].Value.Uint64()))
			select {
			case <-stop:
				result <- largest
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return sync.OnceValue(func() int64 {
		close(stop)
		return <-result
	})
}
