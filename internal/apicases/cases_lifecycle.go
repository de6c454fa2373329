package apicases

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

var noDelete = metav1.DeleteOptions{}

const withFinalizer = "{metadata: {name: a, finalizers: [example.com/a]}, spec: {a: '1'}}"

var statusCases = []Case{
	{"update of the status", func(s *session) {
		s.things.update(set(s.things.create(withSpec), "1", "status", "a"), status)
	}},
	{"update of the status ignores other fields", func(s *session) {
		created := set(s.things.create(withSpec), "2", "spec", "a")
		created = set(created, "x", "metadata", "labels", "a")
		s.things.update(set(created, "1", "status", "a"), status)
	}},
	{"update of the status that adds an invalid label", func(s *session) {
		created := set(s.things.create(withSpec), "not valid!", "metadata", "labels", "a")
		s.things.update(set(created, "1", "status", "a"), status)
	}},
	{"update of the status that removes a finalizer", func(s *session) {
		created := unset(s.things.create(withFinalizer), "metadata", "finalizers")
		s.things.update(set(created, "1", "status", "a"), status)
	}},
	{"update of the status without a status", func(s *session) {
		updated := s.things.update(set(s.things.create(withSpec), "1", "status", "a"), status)
		s.things.update(unset(updated, "status"), status)
	}},
	{"update of the status without changes", func(s *session) {
		s.things.update(s.things.create(withSpec), status)
	}},
	{"update of the status with an old resourceVersion", func(s *session) {
		old := s.things.create(withSpec)
		s.things.merge("a", `{"spec":{"a":"2"}}`)
		s.things.update(set(old, "1", "status", "a"), status)
	}},
	{"update of the status with another UID", func(s *session) {
		s.things.update(set(s.things.create(withSpec), "other", "metadata", "uid"), status)
	}},
	{"update of the status with another kind", func(s *session) {
		s.things.update(set(set(s.things.create(withSpec), "Other", "kind"), "1", "status", "a"), status)
	}},
	{"update of the status without a resourceVersion", func(s *session) {
		s.things.create(withSpec)
		s.things.update(s.things.object("{metadata: {name: a}, status: {a: '1'}}"), status)
	}},
	{"update of the status of a missing object", func(s *session) {
		s.things.update(s.things.object("{metadata: {name: a, resourceVersion: '1'}, status: {a: '1'}}"), status)
	}},
	{"update ignores the status", func(s *session) {
		updated := s.things.update(set(s.things.create(withSpec), "1", "status", "a"), status)
		updated = s.things.update(set(updated, "2", "status", "a"))
		s.things.update(unset(updated, "status"))
	}},
	{"merge patch of the status without the subresource", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `{"status":{"a":"1"}}`)
	}},
	{"merge patch of the status", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `{"status":{"a":"1"},"spec":{"a":"2"}}`, status)
		s.things.merge("a", `{"status":{"b":"1"}}`, status)
	}},
	{"apply of the status without the subresource", func(s *session) {
		s.things.apply("m", "{metadata: {name: a}, spec: {a: '1'}, status: {a: '1'}}")
	}},
	{"apply of the status", func(s *session) {
		s.things.apply("m", withSpec)
		s.things.apply("m", "{metadata: {name: a}, status: {a: '1'}}", status)
		s.things.apply("m", "{metadata: {name: a}, status: {b: '1'}}", status)
	}},
	{"apply of the status ignores other fields", func(s *session) {
		s.things.apply("m", withSpec)
		s.things.apply("n", "{metadata: {name: a, labels: {a: b}}, spec: {a: '2'}, status: {a: '1'}}", status)
	}},
	{"apply of the status conflicts", func(s *session) {
		s.things.apply("m", withSpec)
		s.things.apply("m", "{metadata: {name: a}, status: {a: '1'}}", status)
		s.things.apply("n", "{metadata: {name: a}, status: {a: '2'}}", status)
	}},
	{"apply of the status of a missing object", func(s *session) {
		s.things.apply("m", "{metadata: {name: a}, status: {a: '1'}}", status)
	}},
	{"update of the status of a config map", func(s *session) {
		s.configMaps.update(s.configMaps.create("{metadata: {name: a}}"), status)
	}},
}

var deleteCases = []Case{
	{"delete an object", func(s *session) {
		s.things.create(withSpec)
		s.things.delete("a", noDelete)
	}},
	{"delete a missing object", func(s *session) { s.things.delete("a", noDelete) }},
	{"delete with the UID of the object", func(s *session) {
		created := s.things.create(withSpec)
		s.things.delete("a", precondition(ptr.To(created.GetUID()), nil))
	}},
	{"delete with another UID", func(s *session) {
		s.things.create(withSpec)
		s.things.delete("a", precondition(ptr.To(types.UID("other")), nil))
	}},
	{"delete with the current resourceVersion", func(s *session) {
		created := s.things.create(withSpec)
		s.things.delete("a", precondition(nil, ptr.To(created.GetResourceVersion())))
	}},
	{"delete with an old resourceVersion", func(s *session) {
		old := s.things.create(withSpec)
		s.things.merge("a", `{"spec":{"a":"2"}}`)
		s.things.delete("a", precondition(nil, ptr.To(old.GetResourceVersion())))
	}},
	{"delete with an invalid propagation policy", func(s *session) {
		s.things.create(withSpec)
		s.things.delete("a", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletionPropagation("Other"))})
	}},
	{"delete in the foreground", func(s *session) {
		s.things.create(withSpec)
		s.things.delete("a", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)})
		s.things.gone("a")
	}},
	{"delete in the background", func(s *session) {
		s.things.create(withSpec)
		s.things.delete("a", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)})
	}},
	{"delete with a grace period", func(s *session) {
		s.things.create(withFinalizer)
		s.things.delete("a", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](30)})
	}},
	{"delete and create again", func(s *session) {
		s.things.create(withSpec)
		s.things.delete("a", noDelete)
		s.things.create(withSpec)
	}},
	{"delete a config map", func(s *session) {
		s.configMaps.create("{metadata: {name: a, finalizers: [example.com/a]}}")
		s.configMaps.delete("a", noDelete)
	}},
	{"delete a collection", func(s *session) {
		s.threeThings()
		s.things.deleteAll(noDelete, metav1.ListOptions{})
	}},
	{"delete a collection with a label selector", func(s *session) {
		s.threeThings()
		s.things.deleteAll(noDelete, metav1.ListOptions{LabelSelector: "color=red"})
	}},
	{"delete a collection with a field selector", func(s *session) {
		s.threeThings()
		s.things.deleteAll(noDelete, metav1.ListOptions{FieldSelector: "metadata.name=b"})
	}},
	{"delete a collection with an invalid selector", func(s *session) {
		s.threeThings()
		s.things.deleteAll(noDelete, metav1.ListOptions{LabelSelector: "color in"})
	}},
	{"delete a collection with another UID", func(s *session) {
		s.things.create(withSpec)
		s.things.deleteAll(precondition(ptr.To(types.UID("other")), nil), metav1.ListOptions{})
	}},
	{"delete an empty collection", func(s *session) { s.things.deleteAll(noDelete, metav1.ListOptions{}) }},
	{"delete a collection with finalizers", func(s *session) {
		s.things.create(withFinalizer)
		s.things.deleteAll(noDelete, metav1.ListOptions{})
	}},
}

func precondition(uid *types.UID, version *string) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: uid, ResourceVersion: version}}
}

// deletingThing creates an object with finalizers and deletes it.
func (s *session) deletingThing(manifest string) resource {
	s.things.create(manifest)
	s.things.delete("a", noDelete)
	return s.things
}

var finalizerCases = []Case{
	{"delete an object with a finalizer", func(s *session) { s.deletingThing(withFinalizer) }},
	{"delete an object with a finalizer twice", func(s *session) {
		s.deletingThing(withFinalizer).delete("a", noDelete)
	}},
	{"update that removes the last finalizer of a deleted object", func(s *session) {
		r := s.deletingThing(withFinalizer)
		r.update(unset(r.get("a"), "metadata", "finalizers"))
	}},
	{"merge patch that removes the last finalizer of a deleted object", func(s *session) {
		s.deletingThing(withFinalizer).merge("a", `{"metadata":{"finalizers":null}}`)
	}},
	{"apply that removes the last finalizer of a deleted object", func(s *session) {
		s.things.apply("m", withFinalizer)
		s.things.delete("a", noDelete)
		s.things.apply("m", withSpec)
	}},
	{"update that removes one of two finalizers of a deleted object", func(s *session) {
		r := s.deletingThing("{metadata: {name: a, finalizers: [example.com/a, example.com/b]}}")
		r.update(set(r.get("a"), []any{"example.com/b"}, "metadata", "finalizers"))
	}},
	{"update that adds a finalizer to a deleted object", func(s *session) {
		r := s.deletingThing(withFinalizer)
		r.update(set(r.get("a"), []any{"example.com/a", "example.com/b"}, "metadata", "finalizers"))
	}},
	{"update that replaces the finalizer of a deleted object", func(s *session) {
		r := s.deletingThing(withFinalizer)
		r.update(set(r.get("a"), []any{"example.com/b"}, "metadata", "finalizers"))
	}},
	{"apply that adds a finalizer to a deleted object", func(s *session) {
		s.deletingThing(withFinalizer).apply("m",
			"{metadata: {name: a, finalizers: [example.com/a, example.com/b]}}", forced)
	}},
	{"update that changes the deletionTimestamp of a deleted object", func(s *session) {
		r := s.deletingThing(withFinalizer)
		before := r.get("a")
		after := r.update(set(before, "2020-01-01T00:00:00Z", "metadata", "deletionTimestamp"))
		s.record("kept", "%t", after != nil && after.GetDeletionTimestamp().Equal(before.GetDeletionTimestamp()))
	}},
	{"update that removes the deletionTimestamp of a deleted object", func(s *session) {
		r := s.deletingThing(withFinalizer)
		r.update(unset(r.get("a"), "metadata", "deletionTimestamp"))
	}},
	{"update that removes the deletionGracePeriodSeconds of a deleted object", func(s *session) {
		r := s.deletingThing(withFinalizer)
		r.update(unset(r.get("a"), "metadata", "deletionGracePeriodSeconds"))
	}},
	{"update that changes the deletionGracePeriodSeconds of a deleted object", func(s *session) {
		r := s.deletingThing(withFinalizer)
		r.update(set(r.get("a"), int64(30), "metadata", "deletionGracePeriodSeconds"))
	}},
	{"update of the spec of a deleted object", func(s *session) {
		r := s.deletingThing(withFinalizer)
		r.update(set(r.get("a"), "2", "spec", "a"))
	}},
	{"update of the status of a deleted object", func(s *session) {
		r := s.deletingThing(withFinalizer)
		r.update(set(r.get("a"), "1", "status", "a"), status)
	}},
}

var generationCases = []Case{
	{"the generation changes with the spec", func(s *session) {
		created := s.things.create(withSpec)
		s.things.update(set(created, "2", "spec", "a"))
	}},
	{"the generation changes with other fields than the spec", func(s *session) {
		created := s.things.create(withSpec)
		s.things.update(set(created, "2", "data", "a"))
	}},
	{"the generation does not change with metadata", func(s *session) {
		created := s.things.create(withSpec)
		s.things.update(set(created, "x", "metadata", "labels", "a"))
	}},
	{"the generation does not change with the status", func(s *session) {
		created := s.things.create(withSpec)
		s.things.update(set(created, "1", "status", "a"), status)
	}},
	{"the generation does not change with the owner of a field", func(s *session) {
		s.things.create(withSpec)
		s.things.apply("m", withSpec)
	}},
	{"the generation of a config map", func(s *session) {
		created := s.configMaps.create("{metadata: {name: a}, data: {a: '1'}}")
		s.configMaps.update(set(created, "2", "data", "a"))
	}},
	{"an empty map differs from a missing one", func(s *session) {
		created := s.things.create("{metadata: {name: a}}")
		s.things.update(set(created, map[string]any{}, "spec"))
	}},
}

var dryRunCases = []Case{
	{"dry run of a create", func(s *session) { s.things.createObject(s.things.object(withSpec), dry) }},
	{"dry run of a create with a generated name", func(s *session) {
		s.things.createObject(s.things.object("{metadata: {generateName: a-}}"), dry)
	}},
	{"dry run of an invalid create", func(s *session) {
		s.things.createObject(s.things.object("{metadata: {name: A}}"), dry)
	}},
	{"dry run of a create of an existing object", func(s *session) {
		s.things.create(withSpec)
		s.things.createObject(s.things.object(withSpec), dry)
	}},
	{"dry run of an update", func(s *session) { s.things.update(set(s.things.create(withSpec), "2", "spec", "a"), dry) }},
	{"dry run of a merge patch", func(s *session) {
		s.things.create(withSpec)
		s.things.merge("a", `{"spec":{"a":"2"}}`, dry)
	}},
	{"dry run of an apply", func(s *session) {
		s.things.create(withSpec)
		s.things.apply("m", "{metadata: {name: a}, spec: {a: '2'}}", forced, dry)
	}},
	{"dry run of an apply that creates", func(s *session) { s.things.apply("m", withSpec, dry) }},
	{"dry run of a delete", func(s *session) {
		s.things.create(withSpec)
		s.things.delete("a", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	}},
	{"dry run of a delete with a finalizer", func(s *session) {
		s.things.create(withFinalizer)
		s.things.delete("a", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	}},
	{"dry run of the removal of the last finalizer", func(s *session) {
		s.deletingThing(withFinalizer).merge("a", `{"metadata":{"finalizers":null}}`, dry)
	}},
}
