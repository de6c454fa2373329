// Package expression finds the expressions in the strings of templates, compiles them as CEL and evaluates them.
//
// An expression is written as ${self.spec.size}. A string that consists of one expression takes the value of the
// expression, which can be of any type. In any other string, expressions must yield strings, numbers or booleans. $${
// stands for the literal text ${.
//
// The language is CEL with Kubernetes' libraries, cel.bind and base64. A field whose name is not an identifier is
// written in backticks, as in self.metadata.labels.`app.kubernetes.io/name`. A string remains a string regardless of
// its format. Use timestamp(self.metadata.creationTimestamp) to convert it. A field or list item whose value is
// optional.none() is left out.
//
// Expressions are limited in the same way as Kubernetes' own: by the cost that the schemas allow when they are
// compiled, and by the actual cost when they are evaluated. See cost.go for additions to Kubernetes' cost model. A
// value that is put into an object is bounded in size and depth.
//
// Everything in this package except [Room] is safe for concurrent use.
package expression
