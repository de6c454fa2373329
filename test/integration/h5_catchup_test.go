package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/internal/shards"
)

// copier copies an annotation of an object to another one. It records what it has read.
type copier struct {
	mu    sync.Mutex
	calls map[string][]string // what each replica has read, by call
}

const wanted, copied = "wanted", "copied"

func (c *copier) handler(m *shardMember, client dynamic.Interface) dynamiccontroller.Handler {
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		lister, err := m.engine.Lister(id.GVR)
		if err != nil {
			return err
		}
		object, err := lister.Get(id.NamespacedKey)
		if err != nil {
			return err
		}
		annotations := object.(*unstructured.Unstructured).GetAnnotations()
		c.mu.Lock()
		c.calls[m.name] = append(c.calls[m.name], annotations[copied])
		c.mu.Unlock()
		if annotations[copied] == annotations[wanted] {
			return nil
		}
		_, err = client.Resource(id.GVR).Namespace(id.Namespace()).Patch(ctx, id.Name(), types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"copied":"`+annotations[wanted]+`"}}}`), metav1.PatchOptions{})
		return err
	}
}

// readBy returns what a replica has read.
func (c *copier) readBy(m *shardMember) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls[m.name])
}

// The leader writes an object and leaves. The watch of the next leader receives the write 0.1 s after it has acquired
// the Lease.
func TestL6_H5_FirstCallReadsWhatTheLastLeaderHasWritten(t *testing.T) {
	t.Run("one Lease", func(t *testing.T) {
		h := newHarness(t)
		h.allowShards()
		gvr, c := h.widgets(), &copier{calls: map[string][]string{}}
		h.apply(gvr, "w", 0)
		withoutShards := func(o *replica.Options) { o.Shards = 0 }
		leader := h.shardMember("a", []gvrType{gvr}, c.handler, withoutShards)
		h.eventually("the first replica leads", func() error {
			if !leader.Status().Leading {
				return errors.New("it does not")
			}
			return nil
		})
		next := h.shardMember("b", []gvrType{gvr}, c.handler, withoutShards)
		h.noError(next.engine.WaitForGVRSync(t.Context(), gvr))
		c.handOver(leader, next, gvr, leaseName)
	})
	t.Run("shards", func(t *testing.T) {
		h := newHarness(t)
		h.allowShards()
		gvr, c := h.widgets(), &copier{calls: map[string][]string{}}
		h.apply(gvr, "w", 0)
		a := h.shardMember("a", []gvrType{gvr}, c.handler)
		b := h.shardMember("b", []gvrType{gvr}, c.handler)
		eventuallyLed(h, 1, a, b)
		eventuallyWarm(h, a, b)
		shard := shards.Of(gvr.GroupResource(), testShards)
		leader, next := a, b
		if b.Status().Shards[shard].Leading {
			leader, next = b, a
		}
		c.handOver(leader, next, gvr, fmt.Sprintf("%s-shard-%d", leaseName, shard))
	})
}

// handOver makes the leader write the object and leave, and checks what the first call of the next leader reads.
func (c *copier) handOver(leader, next *shardMember, gvr gvrType, lease string) {
	const delay = 100 * time.Millisecond
	h := leader.h
	h.Helper()
	earlier := len(c.readBy(next)) // before the shards were balanced
	release := next.wire.hold(gvr)
	defer release()
	var acquired sync.Once
	next.wire.set(func(r *http.Request, send send) (*http.Response, error) {
		response, err := send(r)
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/leases/"+lease) &&
			err == nil && response.StatusCode == http.StatusOK {
			acquired.Do(func() { time.AfterFunc(delay, release) })
		}
		return response, err
	})
	h.merge(gvr, h.namespace, "w", `{"metadata":{"annotations":{"wanted":"yes"}}}`)
	h.eventually("the leader reads what it has written", func() error {
		if !slices.Contains(c.readBy(leader), "yes") {
			return errors.New("it has not")
		}
		return nil
	})
	h.noError(leader.stop())
	h.eventually("the next leader reconciles the object", func() error {
		if len(c.readBy(next)) == earlier {
			return errors.New("it has not called the handler")
		}
		return nil
	})
	if got := c.readBy(next)[earlier]; got != "yes" {
		h.Errorf("the first call read %q, want what the last leader has written", got)
	}
}
