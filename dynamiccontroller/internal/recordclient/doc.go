// Package recordclient lists and watches objects in encoded form.
//
// The source that [NewForConfigAndClient] returns reads responses as they arrive. The response to a list request is
// never held in memory in full, and objects are not decoded. The client returns an [objects.Record] for each object.
//
// Responses are requested as JSON. The API server does not encode custom resources as protobuf, although it does encode
// their metadata. CBOR is an alpha feature of the API server that is off by default.
package recordclient
