package apicases

import "fmt"

var applyCases = []Case{
	{"apply creates an object", func(s *session) { s.things.apply("m", withSpec) }},
	{"apply without changes", func(s *session) {
		s.things.apply("m", withSpec)
		s.things.apply("m", withSpec)
	}},
	{"apply of the same fields by a second manager", func(s *session) {
		s.things.apply("m", withSpec)
		s.things.apply("n", withSpec)
	}},
	{"apply of a field that another manager has applied", func(s *session) {
		s.things.apply("m", withSpec)
		s.things.apply("n", "{metadata: {name: a}, spec: {a: '2'}}")
	}},
	{"forced apply of a field that another manager has applied", func(s *session) {
		s.things.apply("m", withSpec)
		s.things.apply("n", "{metadata: {name: a}, spec: {a: '2'}}", forced)
	}},
	{"apply of a field that another manager has updated", func(s *session) {
		created := s.things.apply("m", withSpec)
		s.things.update(set(created, "2", "spec", "a"), as("u"))
		s.things.apply("m", "{metadata: {name: a}, spec: {a: '3'}}")
	}},
	{"apply that conflicts in two fields with two managers", func(s *session) {
		s.things.apply("m", withSpec)
		s.things.apply("n", "{metadata: {name: a, labels: {b: '1'}}}")
		s.things.apply("o", "{metadata: {name: a, labels: {b: '2'}}, spec: {a: '2'}}")
	}},
	{"apply removes a field that it no longer contains", func(s *session) {
		s.things.apply("m", "{metadata: {name: a, labels: {a: b}}, spec: {a: '1', b: '1'}}")
		s.things.apply("m", withSpec)
	}},
	{"apply keeps a field that another manager also owns", func(s *session) {
		s.things.apply("m", "{metadata: {name: a}, spec: {a: '1', b: '1'}}")
		s.things.apply("n", "{metadata: {name: a}, spec: {b: '1'}}")
		s.things.apply("m", withSpec)
	}},
	{"apply without a field that another manager has updated", func(s *session) {
		created := s.things.apply("m", "{metadata: {name: a}, spec: {a: '1', b: '1'}}")
		s.things.update(set(created, "2", "spec", "b"), as("u"))
		s.things.apply("m", withSpec)
	}},
	{"apply of nothing after an apply", func(s *session) {
		s.things.apply("m", withSpec)
		s.things.apply("m", "{metadata: {name: a}}")
	}},
	{"apply to an object that was created", func(s *session) {
		s.things.create(withSpec)
		s.things.apply("m", "{metadata: {name: a}, spec: {b: '1'}}")
	}},
	{"apply without a manager", func(s *session) { s.things.apply("", withSpec) }},
	{"apply with a UID to a missing object", func(s *session) {
		s.things.apply("m", "{metadata: {name: a, uid: u}}")
	}},
	{"apply with another UID", func(s *session) {
		s.things.apply("m", withSpec)
		s.things.apply("m", "{metadata: {name: a, uid: other}, spec: {a: '2'}}")
	}},
	{"apply with the UID of the object", func(s *session) {
		created := s.things.apply("m", withSpec)
		s.things.apply("m", "{metadata: {name: a, uid: "+string(created.GetUID())+"}, spec: {a: '2'}}")
	}},
	{"apply with a resourceVersion to a missing object", func(s *session) {
		s.things.apply("m", "{metadata: {name: a, resourceVersion: '1'}}")
	}},
	{"apply with an old resourceVersion", func(s *session) {
		old := s.things.apply("m", withSpec)
		s.things.merge("a", `{"spec":{"b":"2"}}`)
		s.things.apply("m", "{metadata: {name: a, resourceVersion: '"+old.GetResourceVersion()+"'}, spec: {a: '2'}}")
	}},
	{"apply with the current resourceVersion", func(s *session) {
		created := s.things.apply("m", withSpec)
		s.things.apply("m", "{metadata: {name: a, resourceVersion: '"+created.GetResourceVersion()+"'}, spec: {a: '2'}}")
	}},
	{"apply with managedFields", func(s *session) {
		s.things.apply("m", "{metadata: {name: a, managedFields: [{manager: x, operation: Apply}]}}")
	}},
	{"apply with another kind", func(s *session) {
		s.things.apply("m", "{kind: Other, metadata: {name: a}}")
	}},
	{"apply with another group", func(s *session) {
		s.things.apply("m", "{apiVersion: other.example.com/v1, metadata: {name: a}}")
	}},
	{"apply with another name in the object", func(s *session) {
		s.things.applyRaw("b", `{"apiVersion":"`+s.things.gvr.GroupVersion().String()+
			`","kind":"Thing","metadata":{"name":"a"}}`)
	}},
	{"apply without a name in the object", func(s *session) {
		s.things.applyRaw("a", `{"apiVersion":"`+s.things.gvr.GroupVersion().String()+`","kind":"Thing"}`)
	}},
	{"apply with another namespace in the object", func(s *session) {
		s.things.apply("m", "{metadata: {name: a, namespace: other}}")
	}},
	{"apply that is not YAML", func(s *session) { s.things.applyRaw("a", "{") }},
	{"apply with null values", func(s *session) {
		s.things.apply("m", "{metadata: {name: a}, spec: {a: null, b: '1'}}")
	}},
	{"apply that changes a map to a string", func(s *session) {
		s.things.apply("m", "{metadata: {name: a}, spec: {a: {b: '1'}}}")
		s.things.apply("m", withSpec)
	}},
	{"apply of a list replaces the list", func(s *session) {
		s.things.apply("m", "{metadata: {name: a}, spec: {list: [{a: '1'}]}}")
		s.things.apply("n", "{metadata: {name: a}, spec: {list: [{b: '1'}]}}", forced)
	}},
	{"apply with unknown metadata", func(s *session) {
		s.things.apply("m", "{metadata: {name: a, unknown: x}}")
	}},
	{"apply with a label that is a number", func(s *session) {
		s.things.apply("m", "{metadata: {name: a, labels: {a: 5}}}")
	}},
	{"apply of a config map", func(s *session) {
		s.configMaps.apply("m", "{metadata: {name: a}, data: {a: '1', b: '1'}}")
		s.configMaps.apply("n", "{metadata: {name: a}, data: {b: '2'}}", forced)
		s.configMaps.apply("m", "{metadata: {name: a}, data: {a: '3'}}")
	}},
}

var mergeCases = []Case{
	{"apply merges the finalizers of two managers", func(s *session) {
		s.things.apply("m", "{metadata: {name: a, finalizers: [example.com/a]}}")
		s.things.apply("n", "{metadata: {name: a, finalizers: [example.com/b]}}")
	}},
	{"apply removes only its own finalizer", func(s *session) {
		s.things.apply("m", "{metadata: {name: a, finalizers: [example.com/a]}}")
		s.things.apply("n", "{metadata: {name: a, finalizers: [example.com/b]}}")
		s.things.apply("m", "{metadata: {name: a}}")
	}},
	{"apply keeps a finalizer that two managers own", func(s *session) {
		s.things.apply("m", "{metadata: {name: a, finalizers: [example.com/a]}}")
		s.things.apply("n", "{metadata: {name: a, finalizers: [example.com/a, example.com/b]}}")
		s.things.apply("m", "{metadata: {name: a}}")
	}},
	{"apply with the same finalizer twice", func(s *session) {
		s.things.apply("m", "{metadata: {name: a, finalizers: [example.com/a, example.com/a]}}")
	}},
	{"apply to an object with the same finalizer twice", func(s *session) {
		s.things.create("{metadata: {name: a, finalizers: [example.com/a, example.com/a]}}")
		s.things.apply("m", "{metadata: {name: a, finalizers: [example.com/b]}}")
	}},
	{"apply merges the owners of two managers", func(s *session) {
		s.things.apply("m", owned("uid: u1"))
		s.things.apply("n", owned("uid: u2"))
	}},
	{"apply removes only its own owner", func(s *session) {
		s.things.apply("m", owned("uid: u1"))
		s.things.apply("n", owned("uid: u2"))
		s.things.apply("m", "{metadata: {name: a}}")
	}},
	{"apply conflicts about an owner", func(s *session) {
		s.things.apply("m", owned("uid: u1"))
		s.things.apply("n", owned("uid: u1, controller: true"))
	}},
	{"apply of a second controller", func(s *session) {
		s.things.apply("m", owned("uid: u1, controller: true"))
		s.things.apply("n", owned("uid: u2, controller: true"))
	}},
	{"apply with the same owner twice", func(s *session) {
		s.things.apply("m", owned("uid: u1", "uid: u1"))
	}},
	{"apply merges labels and annotations of two managers", func(s *session) {
		s.things.apply("m", "{metadata: {name: a, labels: {a: '1'}, annotations: {a: '1'}}}")
		s.things.apply("n", "{metadata: {name: a, labels: {b: '1'}, annotations: {b: '1'}}}")
		s.things.apply("m", "{metadata: {name: a}}")
	}},
	{"apply removes the last label", func(s *session) {
		s.things.apply("m", "{metadata: {name: a, labels: {a: '1'}}}")
		s.things.apply("m", "{metadata: {name: a}}")
	}},
}

var managerCases = []Case{
	{"create with a manager of 128 characters", func(s *session) {
		s.things.createObject(s.things.object(withSpec), as(long(128)))
	}},
	{"create with a manager of 129 characters", func(s *session) {
		s.things.createObject(s.things.object(withSpec), as(long(129)))
	}},
	{"update with a manager of 129 characters", func(s *session) {
		s.things.update(s.things.create(withSpec), as(long(129)))
	}},
	{"apply with a manager of 129 characters", func(s *session) { s.things.apply(long(129), withSpec) }},
	{"apply with a manager that is not printable", func(s *session) { s.things.apply("a\tb", withSpec) }},
	{"create with an invalid field validation", func(s *session) {
		s.things.createObject(s.things.object(withSpec), func(o *options) { o.validation = "Other" })
	}},
	{"create with an invalid dry run", func(s *session) {
		s.things.createObject(s.things.object(withSpec), func(o *options) { o.dryRun = []string{"Other"} })
	}},
	{"updates by eleven managers", func(s *session) {
		object := s.things.create(withSpec)
		for i := range 11 {
			name := fmt.Sprintf("updater-%02d", i) // in the order of time, which decides which ones are merged
			object = s.things.update(set(object, "1", "spec", "field-"+name), as(name))
		}
	}},
	{"one manager updates and applies", func(s *session) {
		created := s.things.create(withSpec)
		s.things.update(set(created, "2", "spec", "b"), as("m"))
		s.things.apply("m", "{metadata: {name: a}, spec: {b: '2'}}")
		s.things.apply("m", "{metadata: {name: a}}")
	}},
}
