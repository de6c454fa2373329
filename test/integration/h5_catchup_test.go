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

// The leader of a shard writes an object and leaves. The watch of the next leader receives the write 0.1 s after it has
// acquired the Lease.
func TestH5_FirstCallReadsWhatTheLastLeaderHasWritten(t *testing.T) {
	const delay = 100 * time.Millisecond
	h := newHarness(t)
	h.allowShards()
	gvr := h.widgets()
	h.apply(gvr, "w", 0)
	c := &copier{calls: map[string][]string{}}
	a := h.shardMember("a", []gvrType{gvr}, c.handler)
	b := h.shardMember("b", []gvrType{gvr}, c.handler)
	eventuallyLed(h, 1, a, b)
	eventuallyWarm(h, a, b)
	shard := shards.Of(gvr.GroupResource(), testShards)
	leader, next := a, b
	if b.Status().Shards[shard].Leading {
		leader, next = b, a
	}

	earlier := len(c.readBy(next)) // before the shards were balanced
	release := next.wire.hold(gvr)
	defer release()
	var acquired sync.Once
	shardLease := fmt.Sprintf("/leases/%s-shard-%d", leaseName, shard)
	next.wire.set(func(r *http.Request, send send) (*http.Response, error) {
		response, err := send(r)
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, shardLease) &&
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
		t.Errorf("the first call read %q, want what the last leader has written", got)
	}
}
