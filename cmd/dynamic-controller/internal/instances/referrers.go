package instances

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// target identifies the objects of a reference, either by name or by selector.
type target struct {
	gvr             schema.GroupVersionResource
	namespace, name string
	selector        string // in the API server's syntax
}

// scope returns the target without its name and selector.
func (t target) scope() target { return target{gvr: t.gvr, namespace: t.namespace} }

// referrers indexes the instances of a type by the objects to which they refer. It is empty at first. Each reconcile
// adds the targets of one instance. It is safe for concurrent use.
type referrers struct {
	triggers triggerThrottle

	mu        sync.Mutex                            // guards the fields below
	targets   map[string]sets.Set[target]           // by instance key
	instances map[target]sets.Set[string]           // instance keys by target
	selectors map[target]map[target]labels.Selector // parsed selectors of targets, by scope
}

func newReferrers() *referrers {
	return &referrers{
		targets: map[string]sets.Set[target]{}, instances: map[target]sets.Set[string]{},
		selectors: map[target]map[target]labels.Selector{},
	}
}

// add adds a target of an instance. The selector is nil if the target has a name.
func (r *referrers) add(instance string, t target, selector labels.Selector) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.targets[instance] == nil {
		r.targets[instance] = sets.New[target]()
	}
	r.targets[instance].Insert(t)
	if r.instances[t] == nil {
		r.instances[t] = sets.New[string]()
	}
	r.instances[t].Insert(instance)
	if selector == nil {
		return
	}
	if r.selectors[t.scope()] == nil {
		r.selectors[t.scope()] = map[target]labels.Selector{}
	}
	r.selectors[t.scope()][t] = selector
}

// keep removes all targets of an instance except those that are used.
func (r *referrers) keep(instance string, used sets.Set[target]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for t := range r.targets[instance] {
		if !used.Has(t) {
			r.targets[instance].Delete(t)
			r.releaseLocked(instance, t)
		}
	}
	if r.targets[instance].Len() == 0 {
		delete(r.targets, instance)
	}
}

// forget removes an instance.
func (r *referrers) forget(instance string) {
	r.keep(instance, nil)
	r.triggers.forget(instance)
}

func (r *referrers) releaseLocked(instance string, t target) {
	r.instances[t].Delete(instance)
	if r.instances[t].Len() > 0 {
		return
	}
	delete(r.instances, t)
	delete(r.selectors[t.scope()], t)
	if len(r.selectors[t.scope()]) == 0 {
		delete(r.selectors, t.scope())
	}
}

// of returns the keys of the instances that refer to an object.
func (r *referrers) of(gvr schema.GroupVersionResource, object dynamiccontroller.Object) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	scope := target{gvr: gvr, namespace: object.GetNamespace()}
	named := scope
	named.name = object.GetName()
	found := r.instances[named].Clone()
	for t, selector := range r.selectors[scope] {
		// If an object is cached without its content, its labels are unknown.
		if object.GetAnnotations()[omittedAnnotation] != "" || selector.Matches(labels.Set(object.GetLabels())) {
			found.Insert(r.instances[t].UnsortedList()...)
		}
	}
	return found.UnsortedList()
}

// mapFunc returns the MapFunc for the watch of a kind. It delays instances that are triggered too often.
func (r *referrers) mapFunc(engine Engine, gvr, kind schema.GroupVersionResource) dynamiccontroller.MapFunc {
	enqueue := func(instance string) {
		engine.Enqueue(dynamiccontroller.ObjectIdentifiers{GVR: gvr, NamespacedKey: instance})
	}
	return func(_ context.Context, object dynamiccontroller.Object) []string {
		return r.triggers.admit(r.of(kind, object), enqueue)
	}
}

// watches returns watches of the kinds that the revisions of a type refer to. They cache only metadata, and all
// Blueprints share them. For each change, the MapFunc is called with the old and the new object, so an object that no
// longer matches a selector also triggers a reconcile.
func (r *referrers) watches(
	engine Engine, gvr schema.GroupVersionResource, within dynamiccontroller.CommonOption, revisions ...Revision,
) (options []dynamiccontroller.ServeOption) {
	added := sets.New[schema.GroupVersionResource]()
	for _, revision := range revisions {
		for _, kind := range revision.References {
			if added.Has(kind.GVR) {
				continue
			}
			added.Insert(kind.GVR)
			options = append(options, watchOf(kind.GVR, r.mapFunc(engine, gvr, kind.GVR), within))
		}
	}
	return options
}

// watchOf returns a watch of existing objects of a type.
func watchOf(
	kind schema.GroupVersionResource, mapFunc dynamiccontroller.MapFunc, within dynamiccontroller.CommonOption,
) dynamiccontroller.Watch {
	return dynamiccontroller.Watches(kind, mapFunc, within)
}

// keyOf returns the key of an object in the engine.
func keyOf(object metav1.Object) string {
	return cache.NewObjectName(object.GetNamespace(), object.GetName()).String()
}
