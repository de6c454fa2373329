package restmapper

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// waiters wait for a change of a group.
type waiters struct {
	changed chan struct{} // closed with the next one
	count   int
}

// WaitForMapping returns what RESTMapping does once that finds something: at once if the kind is known, else as soon as
// it is served, in one of the versions if any are named. It waits for the first sync too. If ctx ends first the error
// says what was waited for and wraps the context's cause. Nothing is asked of the API server.
func (m *Mapper) WaitForMapping(ctx context.Context, gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	for {
		mapping, err := m.RESTMapping(gk, versions...)
		if err == nil {
			return mapping, nil
		}
		w := m.join(gk.Group)
		// What came between the lookup and joining has woken nobody.
		mapping, err = m.RESTMapping(gk, versions...)
		if err == nil {
			m.leave(gk.Group, w)
			return mapping, nil
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			m.leave(gk.Group, w)
			return nil, fmt.Errorf("waiting for the mapping of %s: %w (%w)", describe(gk, versions), context.Cause(ctx), err)
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

// wakeLocked has those who wait for a kind of the group look again.
func (m *Mapper) wakeLocked(group string) {
	if w := m.waiters[group]; w != nil {
		close(w.changed)
		delete(m.waiters, group)
	}
}
