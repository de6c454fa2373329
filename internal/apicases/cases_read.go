package apicases

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// threeThings creates three objects, the first and the last of which are red.
func (s *session) threeThings() {
	s.things.create("{metadata: {name: a, labels: {color: red}}}")
	s.things.create("{metadata: {name: b}}")
	s.things.create("{metadata: {name: c, labels: {color: red}}}")
}

var listCases = []Case{
	{"list", func(s *session) {
		s.threeThings()
		s.things.list(metav1.ListOptions{})
	}},
	{"list with a label selector", func(s *session) {
		s.threeThings()
		s.things.list(metav1.ListOptions{LabelSelector: "color=red"})
		s.things.list(metav1.ListOptions{LabelSelector: "color notin (red)"})
		s.things.list(metav1.ListOptions{LabelSelector: "!color"})
	}},
	{"list with an invalid label selector", func(s *session) { s.things.list(metav1.ListOptions{LabelSelector: "a in"}) }},
	{"list with a label selector with an invalid value", func(s *session) {
		s.things.list(metav1.ListOptions{LabelSelector: "a=not valid!"})
	}},
	{"list with a field selector", func(s *session) {
		s.threeThings()
		s.things.list(metav1.ListOptions{FieldSelector: "metadata.name=b"})
		s.things.list(metav1.ListOptions{FieldSelector: "metadata.name!=b"})
		s.things.list(metav1.ListOptions{FieldSelector: "metadata.namespace=other"})
	}},
	{"list with an unknown field selector", func(s *session) {
		s.things.list(metav1.ListOptions{FieldSelector: "spec.a=1"})
	}},
	{"list with an invalid field selector", func(s *session) { s.things.list(metav1.ListOptions{FieldSelector: "a"}) }},
	{"list with a limit", func(s *session) {
		s.threeThings()
		list := s.things.list(metav1.ListOptions{Limit: 2})
		s.things.list(metav1.ListOptions{Limit: 2, Continue: list.GetContinue()})
	}},
	{"list with a limit that is the number of objects", func(s *session) {
		s.threeThings()
		s.things.list(metav1.ListOptions{Limit: 3})
	}},
	{"list with a limit and a label selector", func(s *session) {
		s.threeThings()
		list := s.things.list(metav1.ListOptions{Limit: 1, LabelSelector: "color=red"})
		s.things.list(metav1.ListOptions{Limit: 1, LabelSelector: "color=red", Continue: list.GetContinue()})
	}},
	{"the second page of a list contains the state of the first", func(s *session) {
		s.threeThings()
		list := s.things.list(metav1.ListOptions{Limit: 1})
		s.things.delete("b", noDelete)
		s.things.create("{metadata: {name: d}}")
		s.things.merge("c", `{"metadata":{"labels":null}}`)
		page := s.things.list(metav1.ListOptions{Limit: 5, Continue: list.GetContinue()})
		for i := range page.Items {
			s.record("item", "%s", s.show(&page.Items[i]))
		}
		s.record("same version", "%t", page.GetResourceVersion() == list.GetResourceVersion())
	}},
	{"list with an invalid continue token", func(s *session) {
		s.things.list(metav1.ListOptions{Limit: 1, Continue: "invalid"})
	}},
	{"list with a continue token and a resourceVersion", func(s *session) {
		s.threeThings()
		list := s.things.list(metav1.ListOptions{Limit: 1})
		s.things.list(metav1.ListOptions{Limit: 1, Continue: list.GetContinue(), ResourceVersion: list.GetResourceVersion()})
	}},
	{"list at an exact resourceVersion", func(s *session) {
		s.threeThings()
		list := s.things.list(metav1.ListOptions{})
		s.things.delete("a", noDelete)
		s.things.list(metav1.ListOptions{
			ResourceVersion: list.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		})
	}},
	{"list not older than a resourceVersion", func(s *session) {
		s.threeThings()
		list := s.things.list(metav1.ListOptions{})
		s.things.delete("a", noDelete)
		version := s.things.create("{metadata: {name: d}}").GetResourceVersion()
		s.things.list(metav1.ListOptions{
			ResourceVersion: version, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		})
		s.record("listed", "%d", len(list.Items))
	}},
	{"list at a resourceVersion that is not a number", func(s *session) {
		s.things.list(metav1.ListOptions{ResourceVersion: "x"})
	}},
	{"list with a match without a resourceVersion", func(s *session) {
		s.things.list(metav1.ListOptions{ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	}},
	{"list at exactly the resourceVersion 0", func(s *session) {
		s.things.list(metav1.ListOptions{ResourceVersion: "0", ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	}},
	{"list of a namespace that does not exist", func(s *session) {
		s.resource(s.things.gvr, "Thing", "missing").list(metav1.ListOptions{})
	}},
	{"list of a type that is not served", func(s *session) {
		gvr := s.things.gvr
		gvr.Resource = "others"
		s.resource(gvr, "Other", s.server.Namespace).list(metav1.ListOptions{})
	}},
}

var watchCases = []Case{
	{"watch from the resourceVersion of a list", func(s *session) {
		s.things.create(withFinalizer)
		list := s.things.list(metav1.ListOptions{})
		s.things.watch(5, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}, func() {
			s.things.create("{metadata: {name: b}}")
			s.things.merge("a", `{"spec":{"a":"2"}}`)
			s.things.delete("b", noDelete)
			s.things.delete("a", noDelete)
			s.things.merge("a", `{"metadata":{"finalizers":null}}`)
		})
	}},
	{"watch of changes before its start", func(s *session) {
		version := s.things.create(withSpec).GetResourceVersion()
		s.things.merge("a", `{"spec":{"a":"2"}}`)
		s.things.delete("a", noDelete)
		s.things.watch(2, metav1.ListOptions{ResourceVersion: version}, nil)
	}},
	{"watch without a resourceVersion begins with the objects", func(s *session) {
		s.threeThings()
		s.things.watch(4, metav1.ListOptions{}, func() { s.things.delete("b", noDelete) })
	}},
	{"watch with a label selector", func(s *session) {
		version := s.things.create("{metadata: {name: a}}").GetResourceVersion()
		opts := metav1.ListOptions{ResourceVersion: version, LabelSelector: "color=red"}
		s.things.watch(3, opts, func() {
			s.things.merge("a", `{"metadata":{"labels":{"color":"red"}}}`)
			s.things.merge("a", `{"spec":{"a":"2"}}`)
			s.things.create("{metadata: {name: b}}")
			s.things.merge("a", `{"metadata":{"labels":null}}`)
		})
	}},
	{"watch with a field selector", func(s *session) {
		version := s.things.create("{metadata: {name: a}}").GetResourceVersion()
		opts := metav1.ListOptions{ResourceVersion: version, FieldSelector: "metadata.name=b"}
		s.things.watch(1, opts, func() {
			s.things.merge("a", `{"spec":{"a":"2"}}`)
			s.things.create("{metadata: {name: b}}")
		})
	}},
	{"watch from an expired resourceVersion", func(s *session) {
		s.things.create(withSpec)
		s.things.watch(1, metav1.ListOptions{ResourceVersion: "1"}, nil)
	}},
	{"watch from a resourceVersion that is not a number", func(s *session) {
		s.things.watch(1, metav1.ListOptions{ResourceVersion: "x"}, nil)
	}},
	{"watch with an invalid label selector", func(s *session) {
		s.things.watch(1, metav1.ListOptions{LabelSelector: "a in"}, nil)
	}},
	{"watch with an unknown field selector", func(s *session) {
		s.things.watch(1, metav1.ListOptions{FieldSelector: "spec.a=1"}, nil)
	}},
	{"watch with a resourceVersionMatch", func(s *session) {
		s.things.watch(1, metav1.ListOptions{
			ResourceVersion: "1", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		}, nil)
	}},
	{"watch that streams a list", func(s *session) {
		s.things.create(withSpec)
		s.things.watch(1, metav1.ListOptions{
			SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
			AllowWatchBookmarks: true,
		}, nil)
	}},
	{"watch of a type that is not served", func(s *session) {
		gvr := s.things.gvr
		gvr.Resource = "others"
		s.resource(gvr, "Other", s.server.Namespace).watch(1, metav1.ListOptions{}, nil)
	}},
	{"watch ends at its timeout", func(s *session) {
		version := s.things.create(withSpec).GetResourceVersion()
		s.things.watch(1, metav1.ListOptions{ResourceVersion: version, TimeoutSeconds: ptr.To[int64](1)}, nil)
	}},
}
