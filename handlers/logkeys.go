package handlers

// Keys of what is logged. The engine has put the object and its GVR into the context's logger.
const (
	keyTook    = "took"
	keyOutcome = "outcome"
	keyKinds   = "kinds"
	keyCount   = "count"
)
