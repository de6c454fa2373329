package dynamiccontroller

import (
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// sink routes what happens to objects of the type to those of the served type. Once over is closed it asks of no more objects
// that there are already to whom they are of interest: the next run will.
func (s *secondary) sink(over <-chan struct{}) typewatch.Sink {
	return typewatch.Sink{
		Known: func(keys []string) {
			var routed routes
			for _, key := range keys {
				if isClosed(over) {
					return
				}
				if obj, known := s.need.Get(key); known {
					s.route(&routed, obj)
				}
			}
			s.wake(fairqueue.Background, routed)
		},
		Synced: func() { s.reg.gate.pass(s) },
		Changed: func(_ string, old, now any) {
			options := s.options.Load()
			if options.predicate != nil && !options.wants(s.reg.log, s.need.View(old), s.need.View(now)) {
				return
			}
			var routed routes
			s.route(&routed, old)
			s.route(&routed, now)
			s.wake(fairqueue.Live, routed)
		},
	}
}

func (s *secondary) wake(lane fairqueue.Lane, routed routes) {
	if len(routed) == 0 {
		return
	}
	ids := make([]ObjectIdentifiers, 0, len(routed))
	for key := range routed {
		ids = append(ids, s.reg.id(key))
	}
	if !s.reg.group.Add(lane, ids...) {
		for _, id := range ids {
			s.reg.miss(id.NamespacedKey) // the run ends
		}
	}
}

// routes are keys of the served type. Mostly there are none.
type routes map[string]struct{}

func (r *routes) add(key string) {
	if *r == nil {
		*r = routes{}
	}
	(*r)[key] = struct{}{}
}

// route adds the keys of those to whom a state of an object is of interest. Whether an owner is of the served type at all is
// told by its UID.
func (s *secondary) route(routed *routes, obj any) {
	if obj == nil {
		return
	}
	options := s.options.Load()
	if !options.key.owns {
		for _, named := range s.mapped(options.mapFunc, s.need.View(obj)) {
			key, err := normalizeKey(named)
			if err != nil {
				s.reg.refuseKey("MapFunc of "+nameOf(s.key.gvr), named, err)
				continue
			}
			routed.add(key)
		}
		return
	}
	owners := s.need.Owners(obj)
	if len(owners) == 0 {
		return
	}
	primary := s.reg.owner.watchOf(s.reg)
	for i := range owners {
		if !options.key.everyOwner && !owners[i].Controller {
			continue
		}
		for _, key := range owners[i].Keys {
			if primary.HasUID(key, owners[i].UID) {
				routed.add(key)
			}
		}
	}
}

// mapped calls the MapFunc and recovers from its panics.
func (s *secondary) mapped(mapFunc MapFunc, obj any) (keys []string) {
	object, ok := obj.(runtime.Object)
	if !ok {
		return nil
	}
	if panicked := protect.Call(func() { keys = mapFunc(object) }); panicked != nil {
		s.reg.log.Error(panicked, "MapFunc panicked, nothing is enqueued", keyWatched, nameOf(s.key.gvr), keyStack, string(panicked.Stack))
		return nil
	}
	return keys
}
