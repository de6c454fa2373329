package handlers

import (
	"hash/maphash"
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// memory is what Children saves requests with. Without it, after a start, all is as right, with some more of them.
type memory struct {
	mu      sync.Mutex // guards parents and what is in them
	parents map[dynamiccontroller.ObjectIdentifiers]*parentMemory
}

type parentMemory struct {
	inventory inventory
	written   version   // the parent with that inventory
	ignored   uint64    // hash of the other entries of the inventory that were last logged
	waiting   time.Time // for deletions, since then; or not
	children  map[dynamiccontroller.ObjectIdentifiers]childMemory
}

// childMemory is how the API server answered when a child was applied.
type childMemory struct {
	hash      string  // of what was applied
	written   version // what came of it
	signature signature
}

// version is one state of one object.
type version struct {
	uid             types.UID
	resourceVersion string
}

func versionOf(object metav1.Object) version {
	return version{uid: object.GetUID(), resourceVersion: object.GetResourceVersion()}
}

// isAfter tells whether v is a later state of the object. It is false if nobody can tell.
func (v version) isAfter(object metav1.Object) bool {
	if v.uid != object.GetUID() {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(v.resourceVersion, object.GetResourceVersion())
	return err == nil && order > 0
}

func (m *memory) parentLocked(id dynamiccontroller.ObjectIdentifiers) *parentMemory {
	if m.parents == nil {
		m.parents = map[dynamiccontroller.ObjectIdentifiers]*parentMemory{}
	}
	p := m.parents[id]
	if p == nil {
		p = &parentMemory{children: map[dynamiccontroller.ObjectIdentifiers]childMemory{}}
		m.parents[id] = p
	}
	return p
}

func (m *memory) rememberInventory(id dynamiccontroller.ObjectIdentifiers, parent metav1.Object, inventory inventory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.parentLocked(id)
	p.inventory, p.written = inventory, versionOf(parent)
}

func (m *memory) inventoryAfter(id dynamiccontroller.ObjectIdentifiers, parent metav1.Object) (inventory, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.parents[id]; p != nil && p.written.isAfter(parent) {
		return p.inventory, true
	}
	return nil, false
}

// ignoredSeed makes the hashes of ignored entries differ between processes.
var ignoredSeed = maphash.MakeSeed()

// isNewlyIgnored reports whether the ignored entries of the parent's inventory have changed since the last call.
func (m *memory) isNewlyIgnored(id dynamiccontroller.ObjectIdentifiers, entries string) bool {
	hash := maphash.String(ignoredSeed, entries)
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.parentLocked(id)
	known := p.ignored == hash
	p.ignored = hash
	return !known
}

func (m *memory) remember(parent, child dynamiccontroller.ObjectIdentifiers, memory childMemory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.parentLocked(parent).children[child] = memory
}

func (m *memory) recall(parent, child dynamiccontroller.ObjectIdentifiers) childMemory {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.parents[parent]; p != nil {
		return p.children[child]
	}
	return childMemory{}
}

func (m *memory) forgetChild(parent, child dynamiccontroller.ObjectIdentifiers) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.parents[parent]; p != nil {
		delete(p.children, child)
	}
}

// waits tells how long a parent waits for deletions this time: as long as it has waited, whatever called it meanwhile.
func (m *memory) waits(parent dynamiccontroller.ObjectIdentifiers) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.parentLocked(parent)
	if p.waiting.IsZero() {
		p.waiting = time.Now()
	}
	return min(max(time.Since(p.waiting), childrenPoll), slowestChildrenPoll)
}

func (m *memory) waitsNoMore(parent dynamiccontroller.ObjectIdentifiers) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.parents[parent]; p != nil {
		p.waiting = time.Time{}
	}
}

// keep forgets a parent's children that are not wanted.
func (m *memory) keep(parent dynamiccontroller.ObjectIdentifiers, isWanted func(child dynamiccontroller.ObjectIdentifiers) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.parents[parent]; p != nil {
		maps.DeleteFunc(p.children, func(child dynamiccontroller.ObjectIdentifiers, _ childMemory) bool { return !isWanted(child) })
	}
}

func (m *memory) forget(parent dynamiccontroller.ObjectIdentifiers) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.parents, parent)
}
