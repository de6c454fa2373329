package restmapper

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// waiters represents the callers that wait for the next change to a group.
type waiters struct {
	changed chan struct{} // closed by the next change
	count   int
}

// WaitForMapping waits until the kind is served, in one of the given versions if any are given. It then returns the
// same mapping as RESTMapping. It also waits for the first sync. It makes no requests. If ctx is cancelled first, the
// error names the kind, and wraps the cause of the cancellation and the error from the last lookup.
func (m *Mapper) WaitForMapping(
	ctx context.Context, gk schema.GroupKind, versions ...string,
) (*meta.RESTMapping, error) {
	for {
		mapping, err := m.RESTMapping(gk, versions...)
		if err == nil {
			return mapping, nil
		}
		w := m.join(gk.Group)
		// Repeat the lookup, because a change between the first lookup and join does not close w.changed.
		mapping, err = m.RESTMapping(gk, versions...)
		if err == nil {
			m.leave(gk.Group, w)
			return mapping, nil
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			m.leave(gk.Group, w)
			return nil, fmt.Errorf("wait for the mapping of %s: %w (%w)", describe(gk, versions), context.Cause(ctx), err)
		}
	}
}

func describe(gk schema.GroupKind, versions []string) string {
	if len(versions) == 0 {
		return gk.String()
	}
	return fmt.Sprintf("%s in version %s", gk, strings.Join(versions, " or "))
}

func (m *Mapper) join(group string) *waiters {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.waiters[group]
	if w == nil {
		w = &waiters{changed: make(chan struct{})}
		m.waiters[group] = w
	}
	w.count++
	return w
}

func (m *Mapper) leave(group string, w *waiters) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.count--; w.count == 0 && m.waiters[group] == w {
		delete(m.waiters, group)
	}
}

// wakeLocked makes the callers that wait for a kind of the group repeat their lookup.
func (m *Mapper) wakeLocked(group string) {
	if w := m.waiters[group]; w != nil {
		close(w.changed)
		delete(m.waiters, group)
	}
}
