package apicases

// Differences are the cases, by name, for which the server of package controllertest answers otherwise than
// kube-apiserver, with the reasons. The documentation of package controllertest lists them.
var Differences = map[string]string{
	"create a namespace with a name of 64 characters": "built-in types have no defaults; " +
		"the API server also reports the label that it sets to the name of a namespace",
	"create in a namespace that does not exist": "namespaces are ordinary objects, so that tests need not create them",
	"strategic merge patch of a config map":     "no type has a schema",
	"apply of a config map":                     "no type has a schema; only managedFields differ",
	"watch from an expired resourceVersion":     "no resourceVersion expires, because the server keeps all changes",
	"watch that streams a list":                 "clients of tests use plain lists",
}
