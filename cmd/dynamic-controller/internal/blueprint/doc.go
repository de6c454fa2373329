// Package blueprint compiles Blueprints and works out what their instances become. It has no client: what it needs to know
// of a cluster it is told, and what is to be done there its caller does.
//
// A [Blueprint] defines a type ([Definition] makes its CustomResourceDefinition) and what an instance of it becomes: other
// objects, written as templates with expressions in them (package expression says how). [Compile] checks all of it at once
// and names every problem by its path; what compiles may be used concurrently and for ever.
//
// What a template may refer to is the instance, as self, without what the platform itself writes to it (resourceVersion,
// managedFields, finalizers, status.conditions and status.observedGeneration: it could drive itself without end), and what
// became of the others, each by its id. From that follows the order, which is the order of the spec otherwise. A resource
// waits until each one that it refers to is there and ready, and what it reads of it is there too.
//
// Where the schema of a template's kind is known, its fields and the types of their values are checked, and those of
// expressions. Nothing is refused that the server would take when it is applied, but for what an expression would always
// leave out or leave empty, and for values that a webhook would have mended: what is required may be missing, for admission
// may add it, and so may null be anywhere, and a fraction where there is an integer.
//
//   - includeWhen says, of self alone, whether the resource is wanted: all of its expressions have to be true. What refers
//     to one that is not wanted is not wanted either.
//   - readyWhen says, of the resource itself by its id and of self, when it is ready: all of its expressions have to be
//     true. Without any it is ready when it is there.
//   - An expression whose value is optional.none() leaves its field or its list's item out.
//   - metadata.name is required, and may have expressions; generateName is refused, for the name is how what is there is
//     known from what is still to be made. A namespaced resource without a namespace is in its instance's, or says where it
//     is when its instance is in none. The server's own fields, ownerReferences, finalizers and status are refused.
//   - Whoever makes an object's keys of expressions could make anything: keys have none.
//   - Some kinds, types of Secrets, labels of Namespaces and namespaces are refused unless the operator allows them:
//     see [ChildPolicy]. A namespace that an expression yields must match spec.allowedNamespaces, or be the instance's
//     own.
//   - Messages never contain data that an expression reads from a Secret. Names and namespaces must not depend on it.
//
// [IncompatibleChanges] compares the schemas of two definitions of one type.
//
// Blueprints may be hostile: how much there may be of everything is in limits.go, and what an instance costs is counted.
package blueprint
