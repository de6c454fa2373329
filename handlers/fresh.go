package handlers

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Fresh reads from a cache, and lets nobody act on what it showed before this process led. It is for [Object].
//
// Whoever begins to lead may have a cache that lags: it shows an object as it was before the leader before changed it, or
// one whose cleanup that leader ran and which is gone. What a handler makes for such an object outside the API server is
// cleaned up by nobody, and children are counted by a spec that is old. So an object that the cache shows is read live, and
// that is returned, until the cache shows the same. From then on the cache is enough, for nobody else removes this
// platform's finalizers.
//
// It writes nothing. It costs one get an object and term, more while the cache lags, and needs get on the type. What is not
// in the cache is not looked for: one that is said to be gone may have yet to come. List lists what the cache has.
//
// It is safe for concurrent use with different objects; the engine never calls a handler twice at once for one. Which
// objects need no more gets is in memory; one that is gone is dropped by the Get that does not find it in the cache.
type Fresh struct {
	live, cache Reader

	mu     sync.Mutex // guards caught; held across no request
	caught map[dynamiccontroller.ObjectIdentifiers]bool
}

var _ Reader = &Fresh{}

// NewFresh reads from cache, and live through client.
func NewFresh(client dynamic.Interface, cache Reader) *Fresh {
	return &Fresh{live: Live(client), cache: cache, caught: map[dynamiccontroller.ObjectIdentifiers]bool{}}
}

// Get is Reader's.
func (f *Fresh) Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	id := dynamiccontroller.ObjectIdentifiers{NamespacedKey: cache.ObjectName{Namespace: namespace, Name: name}.String(), GVR: gvr}
	shown, err := f.cache.Get(ctx, gvr, namespace, name)
	if err != nil {
		f.mark(id, false)
		return nil, err
	}
	f.mu.Lock()
	caught := f.caught[id]
	f.mu.Unlock()
	if caught {
		return shown, nil
	}
	there, err := f.live.Get(ctx, gvr, namespace, name)
	if err != nil {
		return nil, err
	}
	// It was read later, and so is no older. Which is newer is not asked, for not all resourceVersions can be compared.
	f.mark(id, versionOf(there) == versionOf(shown))
	return there, nil
}

func (f *Fresh) mark(id dynamiccontroller.ObjectIdentifiers, caught bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if caught {
		f.caught[id] = true
	} else {
		delete(f.caught, id)
	}
}

// List is Reader's.
func (f *Fresh) List(ctx context.Context, gvr schema.GroupVersionResource, namespace string, selector labels.Selector) ([]*unstructured.Unstructured, error) {
	return f.cache.List(ctx, gvr, namespace, selector)
}

// ForgetAll is for a process that led, ended to, and is to lead again: call it before the engine's Run. Called at another
// time it costs a get an object, and drops those of types that are not served any more.
func (f *Fresh) ForgetAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.caught)
}
