// Package blueprint compiles Blueprints and renders the children of their instances. It has no client: callers describe
// the cluster with [Options], and apply the results.
//
// A [Blueprint] defines a type and templates of the objects that are created for each instance. [Compile] checks all of
// it at once and reports every problem with its path. [Definition] returns the CustomResourceDefinition of the type.
//
// Expressions (see package expression) read the instance as self, without the fields that the platform writes, and
// other children by their ids. The references between templates determine the order of the children. Otherwise, the
// order of the spec is kept. A child waits until the children that it refers to exist and are ready, and until the
// values that it reads exist.
//
// Templates are checked against the schema of their kind, if that is known. This check rejects only templates that the
// API server would reject, with two exceptions. An expression of the wrong type is rejected even if it always yields an
// absent or empty value, and a wrong value is rejected even if a mutating webhook could fix it. Required fields can be
// missing, because admission can add them. Null is accepted everywhere, and fractions are accepted in place of
// integers.
//
//   - includeWhen lists expressions that read self. The child is wanted if all of them are true and all children that
//     it refers to are wanted.
//   - readyWhen lists expressions that read the child, by its id, and self. The child is ready if all are true.
//   - An expression that yields optional.none() omits its field or item.
//   - metadata.name is required and can have expressions. The namespace defaults to that of the instance. An expression
//     in metadata.namespace must yield the instance's own namespace or a namespace that matches
//     spec.allowedNamespaces.
//   - Templates must not set status, generateName, ownerReferences, finalizers, fields that the API server sets, or
//     labels or annotations under platform.example.com/. Keys must not contain expressions.
//   - Messages never contain data that an expression reads from a Secret. Names and namespaces must not depend on such
//     data.
//
// [IncompatibleChanges] compares the schemas of two definitions of one type.
//
// Blueprints can be hostile. All sizes are bounded (see limits.go), and the cost of an instance is counted.
package blueprint
