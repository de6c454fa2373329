package apicases

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

var nameCases = []Case{
	{"create with an upper-case name", func(s *session) { s.things.create("{metadata: {name: Upper}}") }},
	{"create with an underscore in the name", func(s *session) { s.things.create("{metadata: {name: a_b}}") }},
	{"create with a slash in the name", func(s *session) { s.things.create("{metadata: {name: a/b}}") }},
	{"create with a dot in the name", func(s *session) { s.things.create("{metadata: {name: a.b}}") }},
	{"create with a name that ends with a dash", func(s *session) { s.things.create("{metadata: {name: a-}}") }},
	{"create with a name of 253 characters", func(s *session) {
		s.things.create("{metadata: {name: " + long(253) + "}}")
	}},
	{"create with a name of 254 characters", func(s *session) {
		s.things.create("{metadata: {name: " + long(254) + "}}")
	}},
	{"create without a name", func(s *session) { s.things.create("{metadata: {labels: {a: b}}}") }},
	{"create without metadata", func(s *session) { s.things.create("{spec: {a: 1}}") }},
	{"create a config map with an upper-case name", func(s *session) {
		s.configMaps.create("{metadata: {name: Upper}}")
	}},
	{"create a namespace with a dot in the name", func(s *session) {
		s.namespaces.create("{metadata: {name: a.b}}")
	}},
	{"create a namespace with a name of 64 characters", func(s *session) {
		s.namespaces.create("{metadata: {name: " + long(64) + "}}")
	}},
	{"create a role with a colon and upper-case letters in the name", func(s *session) {
		_, err := s.roles.client.Create(s.ctx, s.roles.object("{metadata: {name: 'a:B'}, rules: []}"),
			metav1.CreateOptions{})
		s.outcome("create", err)
		s.roles.remove("a:B")
	}},
	{"create a role with a percent sign in the name", func(s *session) {
		s.roles.create("{metadata: {name: 'a%b'}, rules: []}")
	}},
	{"create with a generated name", func(s *session) { s.things.create("{metadata: {generateName: a-}}") }},
	{"create two objects with generated names", func(s *session) {
		a := s.things.create("{metadata: {generateName: a-}}")
		b := s.things.create("{metadata: {generateName: a-}}")
		s.record("different", "%t", a.GetName() != b.GetName())
	}},
	{"create with a generateName of 58 characters", func(s *session) {
		s.things.create("{metadata: {generateName: " + long(58) + "}}")
	}},
	{"create with a generateName of 59 characters, which is truncated", func(s *session) {
		s.things.create("{metadata: {generateName: " + long(59) + "}}")
	}},
	{"create with a generateName of 250 characters, which is truncated", func(s *session) {
		s.things.create("{metadata: {generateName: " + long(250) + "}}")
	}},
	{"create with a generateName of 260 characters", func(s *session) {
		s.things.create("{metadata: {generateName: " + long(260) + "}}")
	}},
	{"create with an invalid generateName", func(s *session) {
		s.things.create("{metadata: {generateName: A_}}")
	}},
	{"create with a name and a generateName", func(s *session) {
		object := s.things.object("{metadata: {name: named, generateName: other-}}")
		created, err := s.things.client.Create(s.ctx, object, metav1.CreateOptions{FieldManager: "tester"})
		s.outcome("create", err)
		if err == nil {
			s.record("name", "%s", created.GetName())
		}
	}},
	{"get with a slash in the name", func(s *session) {
		_, err := s.things.client.Get(s.ctx, "a/b", metav1.GetOptions{})
		s.outcome("get", err)
	}},
	{"get a missing object", func(s *session) {
		_, err := s.things.client.Get(s.ctx, "missing", metav1.GetOptions{})
		s.outcome("get", err)
	}},
}

var metadataCases = []Case{
	{"create with a label value of 63 characters", func(s *session) {
		s.things.create("{metadata: {name: a, labels: {a: " + long(63) + "}}}")
	}},
	{"create with a label value of 64 characters", func(s *session) {
		s.things.create("{metadata: {name: a, labels: {a: " + long(64) + "}}}")
	}},
	{"create with an invalid label value", func(s *session) {
		s.things.create("{metadata: {name: a, labels: {a: 'not valid!'}}}")
	}},
	{"create with an invalid label key", func(s *session) {
		s.things.create("{metadata: {name: a, labels: {a/b/c: x}}}")
	}},
	{"create with a label key of 64 characters", func(s *session) {
		s.things.create("{metadata: {name: a, labels: {" + long(64) + ": x}}}")
	}},
	{"create with a label that is a number", func(s *session) {
		s.things.create("{metadata: {name: a, labels: {a: 5}}}")
	}},
	{"create with an empty map of labels", func(s *session) {
		s.things.create("{metadata: {name: a, labels: {}, annotations: {}, finalizers: []}}")
	}},
	{"create with unknown metadata", func(s *session) {
		s.things.create("{metadata: {name: a, unknown: x}}")
	}},
	{"update with an invalid label", func(s *session) {
		created := s.things.create("{metadata: {name: a}}")
		s.things.update(set(created, "not valid!", "metadata", "labels", "a"))
	}},
	{"apply with an invalid label", func(s *session) {
		s.things.apply("m", "{metadata: {name: a, labels: {a: 'not valid!'}}}")
	}},
	{"create with an invalid annotation key", func(s *session) {
		s.things.create("{metadata: {name: a, annotations: {'not valid!': x}}}")
	}},
	{"create with annotations of 256 KiB", func(s *session) {
		s.things.create("{metadata: {name: a, annotations: {a: " + long(256<<10-1) + "}}}")
	}},
	{"create with annotations of more than 256 KiB", func(s *session) {
		s.things.create("{metadata: {name: a, annotations: {a: " + long(256<<10) + "}}}")
	}},
	{"merge patch to annotations of more than 256 KiB", func(s *session) {
		s.things.create("{metadata: {name: a, annotations: {a: " + long(200<<10) + "}}}")
		s.things.merge("a", `{"metadata":{"annotations":{"b":"`+long(100<<10)+`"}}}`)
	}},
	{"create with an object of 4 MiB", func(s *session) {
		s.things.create("{metadata: {name: a}, spec: {a: " + long(4<<20) + "}}")
	}},
	{"create with an object of 2 MiB", func(s *session) {
		s.things.create("{metadata: {name: a}, spec: {a: " + long(2<<20) + "}}")
	}},
	{"create with an object of 1 MiB", func(s *session) {
		s.things.create("{metadata: {name: a}, spec: {a: " + long(1<<20) + "}}")
	}},
	{"create with an owner", func(s *session) { s.things.create(owned("uid: u1")) }},
	{"create with an owner without a UID", func(s *session) { s.things.create(owned("uid: ''")) }},
	{"create with an owner without a kind", func(s *session) { s.things.create(owned("uid: u1, kind: ''")) }},
	{"create with an owner without a name", func(s *session) { s.things.create(owned("uid: u1, name: ''")) }},
	{"create with an owner without an apiVersion", func(s *session) {
		s.things.create(owned("uid: u1, apiVersion: ''"))
	}},
	{"create with an owner with an invalid apiVersion", func(s *session) {
		s.things.create(owned("uid: u1, apiVersion: a/b/c"))
	}},
	{"create with an owner that is an event", func(s *session) {
		s.things.create(owned("uid: u1, apiVersion: v1, kind: Event"))
	}},
	{"create with an owner that blocks its deletion", func(s *session) {
		s.things.create(owned("uid: u1, controller: true, blockOwnerDeletion: true"))
	}},
	{"create with two owners", func(s *session) {
		s.things.create(owned("uid: u1", "uid: u2, controller: true"))
	}},
	{"create with two controllers", func(s *session) {
		s.things.create(owned("uid: u1, controller: true", "uid: u2, controller: true"))
	}},
	{"create with the same owner twice", func(s *session) { s.things.create(owned("uid: u1", "uid: u1")) }},
	{"create with two different references to an owner", func(s *session) {
		s.things.create(owned("uid: u1", "uid: u1, name: other"))
	}},
	{"update to two controllers", func(s *session) {
		s.things.create(owned("uid: u1, controller: true"))
		s.things.json("a", `[{"op":"add","path":"/metadata/ownerReferences/-","value":`+
			`{"apiVersion":"example.com/v1","kind":"Unknown","name":"b","uid":"u2","controller":true}}]`)
	}},
	{"create with an invalid finalizer", func(s *session) {
		s.things.create("{metadata: {name: a, finalizers: ['not valid!']}}")
	}},
	{"create with a finalizer without a domain", func(s *session) {
		s.things.create("{metadata: {name: a, finalizers: [cleanup]}}")
	}},
	{"create with the finalizers for both orphans and foreground deletion", func(s *session) {
		s.things.create("{metadata: {name: a, finalizers: [orphan, foregroundDeletion]}}")
	}},
	{"create with the same finalizer twice", func(s *session) {
		s.things.create("{metadata: {name: a, finalizers: [example.com/a, example.com/a]}}")
	}},
	{"update to an invalid finalizer", func(s *session) {
		s.things.create("{metadata: {name: a}}")
		s.things.merge("a", `{"metadata":{"finalizers":["not valid!"]}}`)
	}},
}

// owned returns the manifest of an object with owners. The garbage collector ignores the owners, because their kind
// does not exist.
func owned(owners ...string) string {
	all := ""
	for _, owner := range owners {
		all += "{<<: {apiVersion: example.com/v1, kind: Unknown, name: b}, " + owner + "}, "
	}
	return "{metadata: {name: a, ownerReferences: [" + all + "]}}"
}
