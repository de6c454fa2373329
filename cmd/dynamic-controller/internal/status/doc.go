// Package status describes what a replica does, for commands and pages. The document is [Replica]. [Handler] serves it
// as JSON, and [RetryHandler] reconciles parked objects again.
//
// The document is built from the state of the process and sends no requests to the API server. It contains the errors
// that conditions and the log also contain, from which data of Secrets has been removed.
package status
