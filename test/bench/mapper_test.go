package bench

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	clientgo "k8s.io/client-go/restmapper"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/dynamic-controller/engine/restmapper"
)

// mappers are the REST mappers that are compared. Each make function returns a mapper that has synced.
var mappers = []struct {
	name string
	make func(ctx context.Context, config *rest.Config) (m meta.RESTMapper, end func(), err error)
}{
	{"restmapper", newOurMapper},
	{"controller-runtime", func(_ context.Context, config *rest.Config) (meta.RESTMapper, func(), error) {
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			return nil, nil, err
		}
		m, err := apiutil.NewDynamicRESTMapper(config, client)
		return m, func() {}, err
	}},
	{"client-go", func(_ context.Context, config *rest.Config) (meta.RESTMapper, func(), error) {
		client, err := discovery.NewDiscoveryClientForConfig(config)
		if err != nil {
			return nil, nil, err
		}
		return resetting{clientgo.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))}, func() {}, nil
	}},
}

// resetting resets a mapper after a NoMatch error, which is how client-go's mapper is meant to be used. Without a
// reset, the mapper repeats discovery only once.
type resetting struct{ meta.ResettableRESTMapper }

func (r resetting) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	mapping, err := r.ResettableRESTMapper.RESTMapping(gk, versions...)
	if !meta.IsNoMatchError(err) {
		return mapping, err
	}
	r.Reset()
	return r.ResettableRESTMapper.RESTMapping(gk, versions...)
}

func newOurMapper(ctx context.Context, config *rest.Config) (meta.RESTMapper, func(), error) {
	m, err := restmapper.New(logr.Discard(), config)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = m.Run(ctx) })
	end := func() {
		cancel()
		running.Wait()
	}
	if _, err := m.WaitForMapping(ctx, schema.GroupKind{Kind: "Pod"}); err != nil {
		end()
		return nil, nil, err
	}
	return m, end, nil
}

// BenchmarkMapper measures the number of discovery requests, and the time from when a watch of CRDs reports a type as
// established until a mapper returns its mapping. The mappers are polled at short intervals.
func BenchmarkMapper(b *testing.B) {
	for _, mapper := range mappers {
		b.Run("mapper="+mapper.name, func(b *testing.B) {
			ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
			defer cancel()
			config := shared.Cluster(b).Config()
			client, err := dynamic.NewForConfig(config)
			if err != nil {
				b.Fatal(err)
			}
			var requests atomic.Int64
			counted := rest.CopyConfig(config)
			counted.Wrap(func(next http.RoundTripper) http.RoundTripper { return countDiscovery{next, &requests} })
			m, end, err := mapper.make(ctx, counted)
			if err != nil {
				b.Fatal(err)
			}
			defer end()
			if _, err := m.RESTMapping(schema.GroupKind{Kind: "Pod"}); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				requests.Store(0)
				suffix := fmt.Sprintf("m%d.%s.bench.example.com", os.Getpid(), mapper.name)
				times, err := timeMappings(ctx, client, m, suffix)
				if err != nil {
					b.Fatal(err)
				}
				for _, q := range quantiles("mapped", times) {
					b.ReportMetric(q.Value, q.Unit)
				}
				b.ReportMetric(float64(requests.Load())/float64(len(times)), "discovery-requests/types")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

var typesMapped atomic.Int64

// timeMappings defines types one after another, each in a separate group, and returns the times until they were mapped.
// It deletes the types before it returns.
func timeMappings(
	ctx context.Context, client dynamic.Interface, m meta.RESTMapper, suffix string,
) ([]time.Duration, error) {
	const interval = 100 * time.Microsecond
	crds := client.Resource(crdResource)
	list, err := crds.List(ctx, oneObject)
	if err != nil {
		return nil, err
	}
	events, err := crds.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		return nil, err
	}
	defer events.Stop()
	var times []time.Duration
	for i := range *defineCount {
		// Use a new group for each type, because a mapper can still contain types that were just deleted.
		gvr := resourceOf(fmt.Sprintf("g%d.%s", typesMapped.Add(1), suffix), i)
		if err := define(ctx, client, gvr, smallVersion); err != nil {
			return nil, err
		}
		defer func() { _ = crds.Delete(ctx, gvr.GroupResource().String(), metav1.DeleteOptions{}) }()
		if err := awaitEstablished(ctx, events, gvr); err != nil {
			return nil, err
		}
		established := time.Now()
		for {
			_, err := m.RESTMapping(schema.GroupKind{Group: gvr.Group, Kind: kindOf(gvr)})
			if err == nil {
				break
			}
			if !meta.IsNoMatchError(err) || ctx.Err() != nil {
				return nil, fmt.Errorf("%s: %w", gvr, err)
			}
			time.Sleep(interval)
		}
		times = append(times, time.Since(established))
	}
	return times, nil
}

// countDiscovery counts the requests for /api, /apis, groups and group versions.
type countDiscovery struct {
	next     http.RoundTripper
	requests *atomic.Int64
}

func (c countDiscovery) RoundTrip(r *http.Request) (*http.Response, error) {
	switch path := strings.Split(strings.Trim(r.URL.Path, "/"), "/"); {
	case path[0] == "api" && len(path) <= 2, path[0] == "apis" && len(path) <= 3:
		c.requests.Add(1)
	}
	return c.next.RoundTrip(r)
}

func (c countDiscovery) WrappedRoundTripper() http.RoundTripper { return c.next }
