package children

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/perrun"
)

// Memory records what a run has written: the children that the caches can lack, and the children that Kubernetes does
// not delete with their parent. A child of the second kind is recorded before it is written, because the response can
// be lost. See [Reconciler.Latest] and [Reconciler.Forget].
//
// The zero value is empty. A Memory can be shared by Reconcilers with the same Config.Name, of which at most one
// reconciles a parent at any time. It is dropped at the end of each run. It has one small entry for each child.
type Memory struct {
	runs   perrun.State[runMemory]
	caches perrun.State[applyCache]
}

// runMemory is the Memory of a run.
type runMemory struct {
	mu      sync.Mutex // guards parents
	parents map[dynamiccontroller.ObjectIdentifiers]map[types.UID]*writtenParent
}

// writtenParent is a parent for which children have been written.
type writtenParent struct {
	object   *unstructured.Unstructured // has only what identifies the parent
	children map[childID]writtenChild
}

type writtenChild struct {
	id    childID
	kind  schema.GroupKind
	stage int
}

// add records children of a parent.
func (m *runMemory) add(
	id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured, children []writtenChild,
) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.parents == nil {
		m.parents = map[dynamiccontroller.ObjectIdentifiers]map[types.UID]*writtenParent{}
	}
	if m.parents[id] == nil {
		m.parents[id] = map[types.UID]*writtenParent{}
	}
	written := m.parents[id][parent.GetUID()]
	if written == nil {
		written = &writtenParent{object: identified(parent), children: map[childID]writtenChild{}}
		m.parents[id][parent.GetUID()] = written
	}
	for _, child := range children {
		written.children[child.id] = child
	}
}

// others returns the parents with the identifiers, except the one with the given UID.
func (m *runMemory) others(
	id dynamiccontroller.ObjectIdentifiers, uid types.UID,
) (parents []*unstructured.Unstructured) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for other, written := range m.parents[id] {
		if other != uid {
			parents = append(parents, written.object)
		}
	}
	return parents
}

// of returns the recorded children of a parent, those in the last stage first.
func (m *runMemory) of(id dynamiccontroller.ObjectIdentifiers, uid types.UID) []writtenChild {
	m.mu.Lock()
	defer m.mu.Unlock()
	written := m.parents[id][uid]
	if written == nil {
		return nil
	}
	return slices.SortedFunc(maps.Values(written.children), func(a, b writtenChild) int {
		return cmp.Or(cmp.Compare(b.stage, a.stage), cmp.Compare(a.id.String(), b.id.String()))
	})
}

// keep drops the children of a parent for which keep returns false.
func (m *runMemory) keep(id dynamiccontroller.ObjectIdentifiers, uid types.UID, keep func(writtenChild) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if written := m.parents[id][uid]; written != nil {
		maps.DeleteFunc(written.children, func(_ childID, child writtenChild) bool { return !keep(child) })
	}
}

// drop drops a parent.
func (m *runMemory) drop(id dynamiccontroller.ObjectIdentifiers, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if delete(m.parents[id], uid); len(m.parents[id]) == 0 {
		delete(m.parents, id)
	}
}

// identified returns a copy of the parent that has only what identifies it.
func identified(parent *unstructured.Unstructured) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(parent.GroupVersionKind())
	object.SetNamespace(parent.GetNamespace())
	object.SetName(parent.GetName())
	object.SetUID(parent.GetUID())
	return object
}
