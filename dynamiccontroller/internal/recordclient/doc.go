// Package recordclient lists and watches objects in encoded form.
//
// The source that [NewForConfigAndClient] returns reads responses as they arrive. The response to a list request is
// never held in memory in full, and objects are not decoded. The client returns an [objects.Record] for each object.
//
// Whole objects are requested as JSON, because the API server does not encode custom resources as protobuf. CBOR is an
// alpha feature of the API server that is off by default.
//
// Metadata is requested as protobuf, which costs the API server and the client less CPU time than JSON. A server that
// does not support protobuf returns metadata as JSON, and a server that cannot reduce objects to their metadata returns
// whole objects.
//
// If the projection does not keep managedFields, the API server is asked to leave them out. If the server ignores this,
// the client removes them.
package recordclient
