// Package objects holds Kubernetes objects in encoded form.
//
// A [Record] is one version of an object. It consists of the bytes that the API server sent and a small header with the
// fields that are needed for each event. The bytes are JSON, or protobuf for metadata that was received as protobuf.
// The object is decoded each time it is read. A record of a 2.4 kB object takes about 3 kB of memory. In decoded form,
// the object would take about 18 kB.
package objects
