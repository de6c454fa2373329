package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/cluster"
)

// The engine keeps its cache between two runs. If the first list of the next run accepted any resourceVersion, an API
// server whose watch cache lags could return a state older than the engine's cache. The engine would then report
// existing objects as deleted.
func TestD3_NextRunReportsNoFalseDeletion(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	gvr := h.widgets()
	h.apply(gvr, "early", 0)
	w := &wire{}
	lag := &laggingCache{gvr: gvr}
	w.set(lag.intercept)
	c := w.through(h).controller(dynamiccontroller.Config{})
	calls, deleted := newRecorder(t, nil), &deletions{}
	h.serve(c, gvr, calls.handle, dynamiccontroller.WithPredicate(deleted.record))
	stop := h.run(c)
	calls.waitFor(h.id(gvr, "early"), 1)
	h.apply(gvr, "late", 0)
	calls.waitFor(h.id(gvr, "late"), 1)
	h.noError(stop())
	if !lag.wasUsed() {
		t.Fatal("no list was sent with resourceVersion 0")
	}

	h.run(c)
	calls.waitFor(h.id(gvr, "late"), 2)
	calls.waitFor(h.id(gvr, "early"), 2)
	h.fence(gvr, calls)
	if names := deleted.names(); len(names) > 0 {
		t.Errorf("existing objects were reported as deleted: %v", names)
	}
}

// After etcd has been restored from a backup, the cached resourceVersions are newer than those in etcd. Objects that
// were created after the backup no longer exist, and the next run must report them as deleted.
func TestD3_NextRunRecoversFromEtcdRestore(t *testing.T) {
	t.Parallel()
	h, own := newRestorable(t)
	gvr := h.widgets()
	h.apply(gvr, "stays", 0)
	own.backUp(h)

	w := &wire{}
	large := &tooLarge{}
	w.set(func(r *http.Request, send send) (*http.Response, error) {
		return large.record(send(withoutStreaming(r)))
	})
	c := w.through(h).controller(dynamiccontroller.Config{})
	calls, deleted := newRecorder(t, nil), &deletions{}
	h.serve(c, gvr, calls.handle, dynamiccontroller.WithPredicate(deleted.record))
	stop := h.run(c)
	calls.waitFor(h.id(gvr, "stays"), 1)
	h.advanceEtcd(1000)
	h.apply(gvr, "lost", 0)
	calls.waitFor(h.id(gvr, "lost"), 1)
	h.noError(stop())

	own.restore(h)
	stop = h.run(c)
	calls.waitFor(h.id(gvr, "lost"), 2)
	calls.waitFor(h.id(gvr, "stays"), 2)
	if names := deleted.names(); len(names) != 1 || names[0] != "lost" {
		t.Errorf("got deletions of %v, want lost", names)
	}
	if n := large.count(); n != 1 {
		t.Errorf("got %d requests for a resourceVersion newer than the restored etcd, want 1", n)
	}
	h.apply(gvr, "stays", 1)
	calls.waitFor(h.id(gvr, "stays"), 3)
	h.noError(stop())

	// The next run must request a resourceVersion that exists in the restored etcd.
	before := large.count()
	h.run(c)
	calls.waitFor(h.id(gvr, "stays"), 4)
	if n := large.count() - before; n > 0 {
		t.Errorf("got %d more requests for a resourceVersion newer than the restored etcd, want none", n)
	}
}

// With streaming lists, the cache must recover when etcd is restored during a run or between two runs. The cache must
// also recover if the API server has no streaming lists.
func TestD3_StreamingListsRecoverFromEtcdRestore(t *testing.T) {
	t.Parallel()
	h, own := newRestorable(t)
	types := []gvrType{h.widgets(), h.widgets()}
	for _, gvr := range types {
		h.apply(gvr, "stays", 0)
	}
	own.backUp(h)
	for i, continues := range []bool{true, false} {
		t.Logf("etcd is restored during the run: %t", continues)
		gvr, w := types[i], &wire{}
		var streams atomic.Int64
		w.set(func(r *http.Request, send send) (*http.Response, error) {
			answer, err := send(r)
			isStream := isFor(r, gvr) && r.URL.Query().Get("sendInitialEvents") != ""
			if isStream && err == nil && answer.StatusCode == http.StatusOK {
				streams.Add(1)
			}
			return answer, err
		})
		c := w.through(h).controller(dynamiccontroller.Config{})
		calls, deleted := newRecorder(t, nil), &deletions{}
		h.serve(c, gvr, calls.handle, dynamiccontroller.WithPredicate(deleted.record))
		stop := h.run(c)
		calls.waitFor(h.id(gvr, "stays"), 1)
		h.advanceEtcd(1000)
		h.apply(gvr, "lost", 0)
		calls.waitFor(h.id(gvr, "lost"), 1)
		if streams.Load() == 0 && h.supportsStreaming(gvr) {
			t.Error("no streaming list succeeded")
		}
		if continues {
			own.restore(h)
		} else {
			h.noError(stop())
			own.restore(h)
			stop = h.run(c)
		}
		calls.waitFor(h.id(gvr, "lost"), 2)
		if names := deleted.names(); len(names) != 1 || names[0] != "lost" {
			t.Errorf("got deletions of %v, want lost", names)
		}
		h.apply(gvr, "new", 0)
		calls.waitFor(h.id(gvr, "new"), 1)
		h.noError(stop())
	}
}

// restorable is a control plane whose etcd can be restored from a backup.
type restorable struct {
	cluster *cluster.Cluster
	data    string // The data directory of etcd.
	backup  string
}

func newRestorable(t *testing.T) (*harness, *restorable) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*deadline)
	defer cancel()
	own, err := cluster.Start(ctx, cluster.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	})
	config := own.Config()
	h := &harness{
		T: t, config: config, namespace: "default", client: must(dynamic.NewForConfig(config)),
		clients: must(kubernetes.NewForConfig(config)), crds: must(apiextensions.NewForConfig(config)),
	}
	return h, &restorable{cluster: own, data: filepath.Join(filepath.Dir(own.Kubeconfig()), "etcd"), backup: t.TempDir()}
}

// backUp copies the files of etcd, like a snapshot of its volume. It does not stop the servers, because to start an API
// server takes several seconds of CPU time.
func (r *restorable) backUp(h *harness) {
	h.Helper()
	h.noError(r.cluster.Etcd().Pause())
	err := os.CopyFS(r.backup, os.DirFS(r.data))
	h.noError(errors.Join(err, r.cluster.Etcd().Resume()))
}

// restore replaces the files of etcd while both servers are stopped.
func (r *restorable) restore(h *harness) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), 2*deadline)
	defer cancel()
	h.noError(r.cluster.APIServer().Stop())
	h.noError(r.cluster.Etcd().Stop())
	h.noError(errors.Join(os.RemoveAll(r.data), os.CopyFS(r.data, os.DirFS(r.backup))))
	h.noError(r.cluster.Etcd().Start(ctx))
	h.noError(r.cluster.APIServer().Start(ctx))
	h.noError(r.cluster.WaitReady(ctx))
}

// advanceEtcd makes n writes to increase etcd's revision.
func (h *harness) advanceEtcd(n int) {
	h.Helper()
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			for i := range n / 8 {
				patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d-%d"}}}`, i, time.Now().UnixNano())
				_, err := h.clients.CoreV1().Namespaces().Patch(h.Context(), h.namespace,
					types.MergePatchType, patch, metav1.PatchOptions{})
				if err != nil {
					h.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
}

// supportsStreaming reports whether the API server accepts requests for streaming lists.
func (h *harness) supportsStreaming(gvr gvrType) bool {
	h.Helper()
	yes := true
	stream, err := h.client.Resource(gvr).Watch(h.Context(), metav1.ListOptions{
		SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if apierrors.IsInvalid(err) {
		return false
	}
	h.noError(err)
	stream.Stop()
	return true
}

// withoutStreaming changes a request for a streaming list so that the API server rejects it and the client falls back
// to a plain list.
func withoutStreaming(r *http.Request) *http.Request {
	query := r.URL.Query()
	if query.Get("sendInitialEvents") == "" {
		return r
	}
	query.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchExact)) // Invalid for a streaming list.
	r = r.Clone(r.Context())
	r.URL.RawQuery = query.Encode()
	return r
}

// laggingCache simulates a lagging watch cache. A list with resourceVersion 0 accepts a state of any age. laggingCache
// stores the response to the first such list and returns it for all later ones.
type laggingCache struct {
	gvr gvrType

	mu    sync.Mutex // Guards first.
	first []byte
}

func (l *laggingCache) intercept(r *http.Request, send send) (*http.Response, error) {
	r = withoutStreaming(r)
	answer, err := send(r)
	if err != nil || !isFor(r, l.gvr) || isWatch(r) || r.URL.Query().Get("resourceVersion") != "0" {
		return answer, err
	}
	body, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == nil {
		l.first = body
	}
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(l.first)), int64(len(l.first))
	return answer, nil
}

// wasUsed reports whether a list was sent with resourceVersion 0.
func (l *laggingCache) wasUsed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first != nil
}

// tooLarge counts requests that were rejected because the API server had not reached their resourceVersion.
type tooLarge struct {
	mu sync.Mutex // Guards n.
	n  int
}

func (c *tooLarge) record(answer *http.Response, err error) (*http.Response, error) {
	if err == nil && answer.StatusCode == http.StatusGatewayTimeout {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.n++
	}
	return answer, err
}

func (c *tooLarge) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// deletions records the names of deleted objects. Its record method is a predicate.
type deletions struct {
	mu      sync.Mutex // Guards deleted.
	deleted []string
}

func (d *deletions) record(_ context.Context, old, now dynamiccontroller.Object) bool {
	if now == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.deleted = append(d.deleted, old.GetName())
	}
	return true
}

func (d *deletions) names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.deleted...)
}
