// Package expression finds the expressions in the strings of templates, compiles them as CEL and evaluates them.
//
// An expression is enclosed in ${ and }, as in ${self.spec.size}. If a string consists of a single expression, it takes
// the value of the expression, which can have any type. In any other string, expressions must yield strings, numbers or
// booleans. $${ stands for the literal text ${.
//
// The language is CEL with Kubernetes' libraries, cel.bind, base64 and kro's functions (see docs/blueprints.md). A
// field whose name is not an identifier is written in backticks, as in self.metadata.labels.`app.kubernetes.io/name`. A
// string stays a string, even if its format is date-time. To get a time, write
// timestamp(self.metadata.creationTimestamp). A field or list item whose value is optional.none() or omit() is omitted.
//
// As in Kubernetes, the cost of an expression is limited twice. The compiler limits the estimated cost for the largest
// values that the schemas allow. The evaluation limits the actual cost. See cost.go for the additions to Kubernetes'
// cost model. The size and depth of values that become part of an object are limited, too. If the context of an
// evaluation has a memory.Reservation, the memory of the results of calls is reserved until the evaluation ends.
//
// Everything in this package except [Room] is safe for concurrent use.
package expression
