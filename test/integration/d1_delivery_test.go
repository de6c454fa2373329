package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Watches are closed repeatedly while objects change. After each change, the handler must be called, and by then the
// cache must contain that change.
func TestD1_EveryChangeIsFollowedByACall(t *testing.T) {
	const objects, changes = 20, 30
	h := newHarness(t)
	gvr := h.widgets()
	w := &wire{}
	c := w.through(h).controller(dynamiccontroller.Config{Workers: 4})
	h.run(c)

	var mu sync.Mutex
	seen := map[string]string{} // For each name, the version that the latest call found, or "" after a deletion.
	calls := newRecorder(t, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		lister, err := c.Lister(gvr)
		if err != nil {
			return err
		}
		version := ""
		switch object, err := lister.ByNamespace(id.Namespace()).Get(id.Name()); {
		case err == nil:
			version = must(meta.Accessor(object)).GetResourceVersion()
		case !apierrors.IsNotFound(err):
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		seen[id.Name()] = version
		return nil
	})
	h.serve(c, gvr, calls.handle)
	h.synced(c, gvr)

	last := make([]string, objects)
	var wg sync.WaitGroup
	for i := range objects {
		wg.Go(func() {
			name := fmt.Sprintf("w%d", i)
			for n := range changes {
				last[i] = h.apply(gvr, name, n)
				if n == changes/2 {
					w.cut(gvr)
				}
			}
			if i%2 == 0 {
				h.delete(gvr, name)
				last[i] = ""
			}
		})
	}
	wg.Wait()
	for i := range objects {
		name := fmt.Sprintf("w%d", i)
		h.eventually("the last change to "+name+" is reconciled", func() error {
			mu.Lock()
			defer mu.Unlock()
			if version, called := seen[name]; !called || version != last[i] {
				return fmt.Errorf("got version %q, want %q", version, last[i])
			}
			return nil
		})
	}
}
