// Package blueprint compiles Blueprints and renders the children of their instances. The package does not access the
// cluster. Callers describe the cluster with [Options] and apply the rendered objects.
//
// A [Blueprint] defines a type and the templates of the objects that are created for each instance of the type.
// [Compile] performs the checks that the Blueprint CustomResourceDefinition cannot express. Each problem that it
// reports includes the path of the field.
//
// In an expression (see package expression), self is the instance without the fields that the platform writes, and the
// id of a resource is the child of that resource. A template is rendered when the children that it refers to are ready
// and the values that it reads exist. References between templates therefore determine the order in which children are
// created. Children that do not depend on each other are created in the order of the spec.
//
// Templates are checked against the schema of their kind if the schema is known. This check rejects only templates that
// the API server would reject, with two exceptions. An expression of the wrong type is rejected even if it always
// yields an absent or empty value. A wrong value is rejected even if a mutating webhook could fix it. Required fields
// can be missing because admission can add them. Null is accepted, except as an item of a list whose
// x-kubernetes-list-type is map or set. Fractions are accepted where the schema requires an integer.
//
//   - includeWhen lists conditions. The child is wanted if all conditions are true and all resources that the child
//     refers to are wanted. Conditions that read only self are evaluated first. Conditions that read other resources
//     are evaluated when these resources are ready. Until then, the child waits.
//   - readyWhen lists conditions, which can read self and, by its id, the child. The child is ready if all conditions
//     are true. Without readyWhen, readiness is derived from the status of the child, as in kstatus.
//   - forEach makes a resource a collection, which has one object for each combination of the items of its lists. The
//     template reads the items as variables. readyWhen is evaluated for each object and reads the object as the
//     variable named each. In expressions of other resources, the id of the collection is the list of all its objects.
//     The collection is ready when all its objects are ready.
//   - If an expression yields optional.none() or omit(), its field or list item is omitted.
//   - metadata.name is required and can contain expressions. The namespace defaults to the namespace of the instance.
//     An expression in metadata.namespace must yield the instance's own namespace or a namespace that matches
//     spec.allowedNamespaces.
//   - Templates must not set status, generateName, ownerReferences, finalizers, fields that the API server sets, or
//     labels or annotations under platform.example.com/. Keys must not contain expressions.
//   - If a template sets a map such as metadata.labels, expressions must use has() or ? to read keys that the template
//     does not set.
//   - externalRef replaces the template of a resource. It refers to an existing object by name, or to a list of objects
//     by labels. The objects are read with a [Lookup] and never written. Other resources read them by the id of the
//     reference. Without readyWhen, an object is ready if it exists.
//   - spec.type.status and spec.type.conditions compute a part of an instance's status from self, the existing children
//     and the objects of references. They must not read data from a Secret. The schema of the type includes the fields
//     of spec.type.status. See [Compiled.Definition].
//   - Messages never contain data that an expression reads from a Secret. Names, namespaces and selectors must not
//     depend on such data.
//
// [IncompatibleChanges] compares the CustomResourceDefinition of a type with its replacement.
//
// Blueprints are not trusted. Their sizes are limited (see limits.go), and so is the cost of the expressions of an
// instance.
package blueprint
