package main

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/restmapper"
)

// typeEvents returns the type events of a mapper, so that the engine watches a type as soon as it is served. The two
// packages do not depend on each other.
func typeEvents(mapper *restmapper.Mapper) dynamiccontroller.TypeEvents {
	return func(notify func(gvr schema.GroupVersionResource, served bool)) (cancel func()) {
		unsubscribe := mapper.Subscribe(func(c restmapper.Change) {
			for _, old := range c.Old {
				if !slices.ContainsFunc(c.New, func(m *meta.RESTMapping) bool { return m.Resource == old.Resource }) {
					notify(old.Resource, false)
				}
			}
			for _, current := range c.New {
				notify(current.Resource, true)
			}
		})
		return func() { <-unsubscribe() }
	}
}
