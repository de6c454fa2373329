// Package status describes the state of a replica, for commands and the web page. The document is [Replica]. [Handler]
// serves it as JSON, and a [Retrier] reconciles parked objects again.
//
// The document is built from the state of the process and sends no requests to the API server. It contains the errors
// that conditions and the log also contain, from which data from Secrets has been removed.
package status
