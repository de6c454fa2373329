package apicases

import (
	"k8s.io/apimachinery/pkg/types"
)

const withSpec = "{metadata: {name: a}, spec: {a: '1'}}"

var createCases = []Case{
	{"create sets the metadata of the system", func(s *session) { s.things.create(withSpec) }},
	{"create ignores the metadata of the system that the object contains", func(s *session) {
		s.things.create("{metadata: {name: a, uid: u, generation: 7, creationTimestamp: '2020-01-01T00:00:00Z', " +
			"deletionTimestamp: '2020-01-01T00:00:00Z', deletionGracePeriodSeconds: 5}}")
	}},
	{"create ignores the status", func(s *session) {
		s.things.create("{metadata: {name: a}, spec: {a: '1'}, status: {a: '1'}}")
	}},
	{"create with a resourceVersion", func(s *session) {
		s.things.create("{metadata: {name: a, resourceVersion: '1'}}")
	}},
	{"create with the resourceVersion 0", func(s *session) {
		s.things.create("{metadata: {name: a, resourceVersion: '0'}}")
	}},
	{"create with a resourceVersion that is not a number", func(s *session) {
		s.things.create("{metadata: {name: a, resourceVersion: x}}")
	}},
	{"create an existing object", func(s *session) {
		s.things.create(withSpec)
		s.things.create(withSpec)
	}},
	{"create an existing object that is invalid", func(s *session) {
		s.things.create(withSpec)
		s.things.create("{metadata: {name: a, labels: {a: 'not valid!'}}}")
	}},
	{"create an object that is being deleted", func(s *session) {
		s.things.create("{metadata: {name: a, finalizers: [example.com/a]}}")
		s.things.delete("a", noDelete)
		s.things.create(withSpec)
	}},
	{"create in a namespace that does not match", func(s *session) {
		s.things.create("{metadata: {name: a, namespace: other}}")
	}},
	{"create without a namespace in the object", func(s *session) {
		s.things.createObject(unset(s.things.object(withSpec), "metadata", "namespace"))
	}},
	{"create in a namespace that does not exist", func(s *session) {
		r := s.resource(s.things.gvr, "Thing", "missing")
		r.create("{metadata: {name: a}}")
		r.remove("a")
	}},
	{"create without a namespace in the URL", func(s *session) {
		s.resource(s.things.gvr, "Thing", "").create("{metadata: {name: a}}")
	}},
	{"create with another kind", func(s *session) { s.things.create("{kind: Other, metadata: {name: a}}") }},
	{"create with another group", func(s *session) {
		s.things.create("{apiVersion: other.example.com/v1, metadata: {name: a}}")
	}},
	{"create with another version", func(s *session) {
		object := s.things.object(withSpec)
		object.SetAPIVersion(s.things.gvr.Group + "/v2")
		s.things.createObject(object)
	}},
	{"create a config map with another kind", func(s *session) {
		s.configMaps.create("{kind: Secret, metadata: {name: a}}")
	}},
	{"create with null values", func(s *session) { s.things.create("{metadata: {name: a}, spec: {a: null, b: '1'}}") }},
	{"create a type that is not served", func(s *session) {
		gvr := s.things.gvr
		gvr.Resource = "others"
		s.resource(gvr, "Other", s.server.Namespace).create("{metadata: {name: a}}")
	}},
	{"create a status", func(s *session) {
		s.things.createObject(s.things.object("{metadata: {name: a}, status: {a: '1'}}"), status)
	}},
	{"create a config map", func(s *session) { s.configMaps.create("{metadata: {name: a}, data: {a: '1'}}") }},
	{"get a subresource that does not exist", func(s *session) {
		s.things.create(withSpec)
		object := s.things.get("a")
		s.things.update(object, sub("scale"))
	}},
}

var updateCases = []Case{
	{"update with the current resourceVersion", func(s *session) {
		s.things.update(set(s.things.create(withSpec), "2", "spec", "a"))
	}},
	{"update without changes", func(s *session) { s.things.update(s.things.create(withSpec)) }},
	{"update with an old resourceVersion", func(s *session) {
		old := s.things.create(withSpec)
		s.things.merge("a", `{"spec":{"a":"2"}}`)
		s.things.update(set(old, "3", "spec", "a"))
	}},
	{"update with an old resourceVersion and an invalid label", func(s *session) {
		old := s.things.create(withSpec)
		s.things.merge("a", `{"spec":{"a":"2"}}`)
		s.things.update(set(old, "not valid!", "metadata", "labels", "a"))
	}},
	{"update without a resourceVersion", func(s *session) {
		s.things.create(withSpec)
		s.things.update(s.things.object("{metadata: {name: a}, spec: {a: '2'}}"))
	}},
	{"update with the resourceVersion 0", func(s *session) {
		s.things.create(withSpec)
		s.things.update(s.things.object("{metadata: {name: a, resourceVersion: '0'}, spec: {a: '2'}}"))
	}},
	{"update with a resourceVersion that is not a number", func(s *session) {
		s.things.create(withSpec)
		s.things.update(s.things.object("{metadata: {name: a, resourceVersion: x}, spec: {a: '2'}}"))
	}},
	{"update a config map without a resourceVersion", func(s *session) {
		s.configMaps.create("{metadata: {name: a}, data: {a: '1'}}")
		s.configMaps.update(s.configMaps.object("{metadata: {name: a}, data: {a: '2'}}"))
	}},
	{"update a config map with the resourceVersion 0", func(s *session) {
		s.configMaps.create("{metadata: {name: a}, data: {a: '1'}}")
		s.configMaps.update(s.configMaps.object("{metadata: {name: a, resourceVersion: '0'}, data: {a: '2'}}"))
	}},
	{"update a config map with an old resourceVersion", func(s *session) {
		old := s.configMaps.create("{metadata: {name: a}, data: {a: '1'}}")
		s.configMaps.merge("a", `{"data":{"a":"2"}}`)
		s.configMaps.update(set(old, "3", "data", "a"))
	}},
	{"update with another UID", func(s *session) {
		s.things.update(set(s.things.create(withSpec), "other", "metadata", "uid"))
	}},
	{"update without a UID", func(s *session) {
		s.things.update(set(unset(s.things.create(withSpec), "metadata", "uid"), "2", "spec", "a"))
	}},
	{"update a missing object", func(s *session) {
		s.things.update(s.things.object("{metadata: {name: a, resourceVersion: '1'}}"))
	}},
	{"update a missing object with a UID", func(s *session) {
		s.things.update(s.things.object("{metadata: {name: a, uid: u, resourceVersion: '1'}}"))
	}},
	{"update keeps the creationTimestamp", func(s *session) {
		created := s.things.create(withSpec)
		updated := s.things.update(set(created, "2020-01-01T00:00:00Z", "metadata", "creationTimestamp"))
		s.record("kept", "%t", updated != nil && updated.GetCreationTimestamp() == created.GetCreationTimestamp())
	}},
	{"update without a creationTimestamp", func(s *session) {
		s.things.update(unset(s.things.create(withSpec), "metadata", "creationTimestamp"))
	}},
	{"update keeps the generation", func(s *session) {
		s.things.update(set(s.things.create(withSpec), int64(7), "metadata", "generation"))
	}},
	{"update with a deletionTimestamp", func(s *session) {
		s.things.update(set(s.things.create(withSpec), "2026-01-01T00:00:00Z", "metadata", "deletionTimestamp"))
	}},
	{"update with deletionGracePeriodSeconds", func(s *session) {
		s.things.update(set(s.things.create(withSpec), int64(5), "metadata", "deletionGracePeriodSeconds"))
	}},
	{"update with another namespace", func(s *session) {
		s.things.update(set(s.things.create(withSpec), "other", "metadata", "namespace"))
	}},
	{"update with another kind", func(s *session) { s.things.update(set(s.things.create(withSpec), "Other", "kind")) }},
	{"update without managedFields keeps them", func(s *session) {
		s.things.update(unset(s.things.create(withSpec), "metadata", "managedFields"), as("other"))
	}},
	{"update with an empty list of managedFields removes them", func(s *session) {
		created := s.things.create(withSpec)
		s.things.update(set(created, []any{map[string]any{}}, "metadata", "managedFields"), as("other"))
	}},
	{"update replaces the finalizers of another manager", func(s *session) {
		created := s.things.create("{metadata: {name: a, finalizers: [example.com/a]}}")
		s.things.update(set(created, []any{"example.com/b"}, "metadata", "finalizers"), as("other"))
	}},
	{"update removes a field", func(s *session) { s.things.update(unset(s.things.create(withSpec), "spec", "a")) }},
}

var patchCases = []Case{
	{"merge patch of a field", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `{"spec":{"a":"2","b":"1"}}`)
	}},
	{"merge patch without changes", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `{"spec":{"a":"1"}}`, as("other"))
	}},
	{"merge patch that removes a field", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `{"spec":{"a":null}}`)
	}},
	{"merge patch that replaces a list", func(s *session) {
		s.things.create("{metadata: {name: a}, spec: {list: [{a: 1}, {b: 2}]}}")
		s.things.merge("a", `{"spec":{"list":[{"c":3}]}}`)
	}},
	{"merge patch of a missing object", func(s *session) { s.things.merge("a", `{"spec":{"a":"2"}}`) }},
	{"merge patch with an old resourceVersion", func(s *session) {
		old := s.things.create(withSpec)
		s.things.merge("a", `{"spec":{"a":"2"}}`)
		s.things.merge("a", `{"metadata":{"resourceVersion":"`+old.GetResourceVersion()+`"},"spec":{"a":"3"}}`)
	}},
	{"merge patch with the current resourceVersion", func(s *session) {
		created := s.things.create(withSpec)
		s.things.merge("a", `{"metadata":{"resourceVersion":"`+created.GetResourceVersion()+`"},"spec":{"a":"3"}}`)
	}},
	{"merge patch that removes the resourceVersion", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `{"metadata":{"resourceVersion":null},"spec":{"a":"3"}}`)
	}},
	{"merge patch of a config map that removes the resourceVersion", func(s *session) {
		s.configMaps.create("{metadata: {name: a}, data: {a: '1'}}")
		s.configMaps.merge("a", `{"metadata":{"resourceVersion":null},"data":{"a":"3"}}`)
	}},
	{"merge patch with another UID", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `{"metadata":{"uid":"other"}}`)
	}},
	{"merge patch with another name", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `{"metadata":{"name":"other"}}`)
	}},
	{"merge patch with another namespace", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `{"metadata":{"namespace":"other"}}`)
	}},
	{"merge patch with another kind", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `{"kind":"Other"}`)
	}},
	{"merge patch with a deletionTimestamp", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"}}`)
	}},
	{"merge patch with a creationTimestamp", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `{"metadata":{"creationTimestamp":"2020-01-01T00:00:00Z"}}`)
	}},
	{"merge patch that is not JSON", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `{"spec":`)
	}},
	{"merge patch that is a list", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `[]`)
	}},
	{"merge patch with labels that are a number", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `{"metadata":{"labels":5}}`)
	}},
	{"JSON patch of a field", func(s *session) {
		s.things.create(withSpec)
		s.things.json("a", `[{"op":"replace","path":"/spec/a","value":"2"}]`)
	}},
	{"JSON patch with a test that fails", func(s *session) {
		s.things.create(withSpec)
		s.things.json("a", `[{"op":"test","path":"/spec/a","value":"2"}]`)
	}},
	{"JSON patch that removes a missing field", func(s *session) {
		s.things.create(withSpec)
		s.things.json("a", `[{"op":"remove","path":"/spec/b"}]`)
	}},
	{"JSON patch that is a map", func(s *session) {
		s.things.create(withSpec)
		s.things.json("a", `{"op":"remove","path":"/spec/a"}`)
	}},
	{"JSON patch of a missing object", func(s *session) {
		s.things.json("a", `[{"op":"remove","path":"/spec/a"}]`)
	}},
	{"strategic merge patch of a custom resource", func(s *session) {
		s.things.create(withSpec)
		s.things.patch(types.StrategicMergePatchType, "a", `{"spec":{"a":"2"}}`)
	}},
	{"strategic merge patch of a config map", func(s *session) {
		s.configMaps.create("{metadata: {name: a}, data: {a: '1'}}")
		s.configMaps.patch(types.StrategicMergePatchType, "a", `{"data":{"a":"2"}}`)
	}},
}
