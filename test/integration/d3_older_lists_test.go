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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/cluster"
)

// If the next run's list accepts any version, an API server whose watch cache lags can return an older state than the last run
// has seen.
func TestD3_NextRunReportsNoFalseDeletion(t *testing.T) {
	h := newHarness(t)
	gvr := h.define(h.newType())
	h.apply(gvr, "early", 0)
	w := &wire{}
	lag := &laggingCache{gvr: gvr}
	w.set(lag.meddle)
	c := w.through(h).controller(dynamiccontroller.Config{})
	calls, gone := newRecorder(t, nil), &deletions{}
	h.serve(c, gvr, calls.handle, dynamiccontroller.WithPredicate(gone.note))
	stop := h.run(c)
	calls.waitFor(h.id(gvr, "early"), 1)
	h.apply(gvr, "late", 0)
	calls.waitFor(h.id(gvr, "late"), 1)
	h.noError(stop())
	if !lag.wasAsked() {
		t.Fatal("no list accepted any version")
	}

	h.run(c)
	calls.waitFor(h.id(gvr, "late"), 2)
	calls.waitFor(h.id(gvr, "early"), 2)
	h.fence(gvr, calls)
	if names := gone.names(); len(names) > 0 {
		t.Errorf("deletions of %v, which exist", names)
	}
}

// An etcd that was restored from a backup does not have the resourceVersions that the process has seen. Objects that were
// created after the backup are gone, and the next run must report them as deleted.
func TestD3_NextRunFollowsARestoredEtcd(t *testing.T) {
	h, own := newRestorable(t)
	gvr := h.define(h.newType())
	h.apply(gvr, "stays", 0)
	own.backUp(h)

	w := &wire{}
	large := &tooLarge{}
	w.set(func(r *http.Request, send send) (*http.Response, error) {
		return large.note(send(withoutStreaming(r)))
	})
	c := w.through(h).controller(dynamiccontroller.Config{})
	calls, gone := newRecorder(t, nil), &deletions{}
	h.serve(c, gvr, calls.handle, dynamiccontroller.WithPredicate(gone.note))
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
	if names := gone.names(); len(names) != 1 || names[0] != "lost" {
		t.Errorf("deletions of %v, want lost", names)
	}
	if n := large.count(); n != 1 {
		t.Errorf("%d requests for a version that the API server has lost, want 1", n)
	}
	h.apply(gvr, "stays", 1)
	calls.waitFor(h.id(gvr, "stays"), 3)
	h.noError(stop())

	// The next run asks for a version of the restored etcd.
	before := large.count()
	h.run(c)
	calls.waitFor(h.id(gvr, "stays"), 4)
	if n := large.count() - before; n > 0 {
		t.Errorf("%d more requests for a lost version", n)
	}
}

// With streaming lists, the cache follows a restored etcd in a run that continues, and in the next run.
func TestD3_StreamingListsFollowARestoredEtcd(t *testing.T) {
	h, own := newRestorable(t)
	types := []gvrType{h.define(h.newType()), h.define(h.newType())}
	for _, gvr := range types {
		h.apply(gvr, "stays", 0)
	}
	own.backUp(h)
	for i, continues := range []bool{true, false} {
		t.Logf("the run continues: %t", continues)
		gvr, w := types[i], &wire{}
		var streams atomic.Int64
		w.set(func(r *http.Request, send send) (*http.Response, error) {
			answer, err := send(r)
			if err == nil && isFor(r, gvr) && r.URL.Query().Get("sendInitialEvents") != "" && answer.StatusCode == http.StatusOK {
				streams.Add(1)
			}
			return answer, err
		})
		c := w.through(h).controller(dynamiccontroller.Config{})
		calls, gone := newRecorder(t, nil), &deletions{}
		h.serve(c, gvr, calls.handle, dynamiccontroller.WithPredicate(gone.note))
		stop := h.run(c)
		calls.waitFor(h.id(gvr, "stays"), 1)
		h.advanceEtcd(1000)
		h.apply(gvr, "lost", 0)
		calls.waitFor(h.id(gvr, "lost"), 1)
		if streams.Load() == 0 {
			t.Error("the first list did not stream")
		}
		if continues {
			own.restore(h)
		} else {
			h.noError(stop())
			own.restore(h)
			stop = h.run(c)
		}
		calls.waitFor(h.id(gvr, "lost"), 2)
		if names := gone.names(); len(names) != 1 || names[0] != "lost" {
			t.Errorf("deletions of %v, want lost", names)
		}
		h.apply(gvr, "new", 0)
		calls.waitFor(h.id(gvr, "new"), 1)
		h.noError(stop())
	}
}

// restorable is a control plane whose etcd can be restored from a backup.
type restorable struct {
	cluster *cluster.Cluster
	data    string // the folder of etcd
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

func (r *restorable) backUp(h *harness) {
	h.Helper()
	r.whileDown(h, func() error { return os.CopyFS(r.backup, os.DirFS(r.data)) })
}

func (r *restorable) restore(h *harness) {
	h.Helper()
	r.whileDown(h, func() error { return errors.Join(os.RemoveAll(r.data), os.CopyFS(r.data, os.DirFS(r.backup))) })
}

// whileDown calls f while neither the API server nor etcd runs.
func (r *restorable) whileDown(h *harness, f func() error) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), 2*deadline)
	defer cancel()
	h.noError(r.cluster.APIServer().Stop())
	h.noError(r.cluster.Etcd().Stop())
	h.noError(f())
	h.noError(r.cluster.Etcd().Start(ctx))
	h.noError(r.cluster.APIServer().Start(ctx))
	h.noError(r.cluster.WaitReady(ctx))
}

// advanceEtcd makes n writes.
func (h *harness) advanceEtcd(n int) {
	h.Helper()
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			for i := range n / 8 {
				patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d-%d"}}}`, i, time.Now().UnixNano())
				_, err := h.clients.CoreV1().Namespaces().Patch(h.Context(), h.namespace, types.MergePatchType, patch, metav1.PatchOptions{})
				if err != nil {
					h.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
}

// withoutStreaming makes the API server refuse a streaming list, so that the client falls back to a plain list.
func withoutStreaming(r *http.Request) *http.Request {
	query := r.URL.Query()
	if query.Get("sendInitialEvents") == "" {
		return r
	}
	query.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchExact)) // invalid
	r = r.Clone(r.Context())
	r.URL.RawQuery = query.Encode()
	return r
}

// laggingCache answers all lists of a type that accept any version with the first such answer.
type laggingCache struct {
	gvr gvrType

	mu    sync.Mutex // guards first
	first []byte
}

func (l *laggingCache) meddle(r *http.Request, send send) (*http.Response, error) {
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

// wasAsked reports whether a list has accepted any version.
func (l *laggingCache) wasAsked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first != nil
}

// tooLarge counts requests that were refused because of a resourceVersion that the API server does not have.
type tooLarge struct {
	mu sync.Mutex // guards n
	n  int
}

func (c *tooLarge) note(answer *http.Response, err error) (*http.Response, error) {
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

// deletions records the names of deleted objects. Its note method is a predicate.
type deletions struct {
	mu   sync.Mutex // guards gone
	gone []string
}

func (d *deletions) note(_ context.Context, old, now dynamiccontroller.Object) bool {
	if now == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.gone = append(d.gone, old.GetName())
	}
	return true
}

func (d *deletions) names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.gone...)
}
