// Package explain finds out why a Blueprint or an instance is not healthy. It is pure: package inspect reads the
// objects from a cluster, and this package derives findings from them.
//
//	inspect ─▶ Object with children and events ─▶ Explain ─▶ Report ─▶ text, JSON or YAML
//	                                          └─▶ Tree ────▶ Node
//
// The findings of a [Report] are ordered by how likely they are the cause of all others. Each of them ends with what to
// do. Reports and trees contain conditions, events and metadata, and never the content of objects such as Secrets.
package explain
