package restmapper

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TypeEvents calls notify with each resource that is currently served, and then whenever the API server starts or stops
// serving a resource, until cancel is called. If the scope or the verbs of a kind have changed, or the versions that
// serve it, notify is called again for the resources that are still served. Each version of a resource is reported
// separately. Calls to notify do not overlap, and are made under the conditions of [Mapper.Subscribe]. The cancel
// function returns when no call is in progress, so notify must not call it.
//
// The engine accepts this method: dynamiccontroller.WithTypeEvents(mapper.TypeEvents).
func (m *Mapper) TypeEvents(notify func(resource schema.GroupVersionResource, served bool)) (cancel func()) {
	unsubscribe := m.Subscribe(func(c Change) {
		for _, old := range c.Old {
			if !slices.ContainsFunc(c.New, func(now *meta.RESTMapping) bool { return now.Resource == old.Resource }) {
				notify(old.Resource, false)
			}
		}
		for _, now := range c.New {
			notify(now.Resource, true)
		}
	})
	return func() { <-unsubscribe() }
}
