package main

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/restmapper"
)

// typeEvents tells an engine what a mapper sees, so that a type is watched the moment it appears. The two packages do not
// know each other: any mapper will do for the engine, and whoever uses both joins them.
func typeEvents(mapper *restmapper.Mapper) dynamiccontroller.TypeEvents {
	return func(tell func(gvr schema.GroupVersionResource, served bool)) (cancel func()) {
		return mapper.Subscribe(func(c restmapper.Change) {
			for _, old := range c.Old {
				if !slices.ContainsFunc(c.New, func(m *meta.RESTMapping) bool { return m.Resource == old.Resource }) {
					tell(old.Resource, false)
				}
			}
			for _, now := range c.New {
				tell(now.Resource, true)
			}
		})
	}
}
