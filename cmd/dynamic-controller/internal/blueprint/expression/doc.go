// Package expression reads the strings of templates, and compiles and runs the CEL in them.
//
// A string is text with expressions in it, as ${self.spec.size}. One that is a single expression and nothing else takes
// the value that the expression has, whatever its type; another takes text, and its expressions have to be strings,
// numbers or booleans. $${ is the text ${.
//
// The language is that of Kubernetes' own expressions: its libraries of lists, regexes, URLs, quantities, IPs, CIDRs,
// semantic versions and formats, strings, sets, optionals and comprehensions over two variables. A field whose name is no
// identifier is written in backticks, as self.metadata.labels.`app.kubernetes.io/name`. A string is a string whatever its
// format says: timestamp(self.metadata.creationTimestamp) is a time. optional.none() is no value: who puts it into an
// object leaves the field or the list's item out.
//
// Whoever writes an expression may be hostile. What one costs is counted while it runs, and it ends with an error when
// that is more than [PerCallLimit]. Kubernetes counts what operations do, each after it is done; here what they make counts
// too, however deep, and those that could make much of little (see guard.go) are refused before they do.
//
// Everything in this package may be used concurrently.
package expression
