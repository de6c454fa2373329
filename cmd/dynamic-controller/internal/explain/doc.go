// Package explain finds out why a Blueprint or an instance is not healthy. It is pure: package inspect reads the
// objects from a cluster, and this package derives findings from them.
//
//	inspect ─▶ Object with children and events ─▶ Explain ─▶ Report ─▶ text, JSON or YAML
//	                                          └─▶ Tree ────▶ Node
//
// The findings of a [Report] are ordered by how likely each is to be the cause of the others. Each finding ends with a
// suggested action. Reports and trees contain conditions, events and metadata, and never the content of objects such as
// Secrets.
package explain
