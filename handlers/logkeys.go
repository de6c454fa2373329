package handlers

// Keys for log messages. The engine adds the object and its GVR to the logger in the context.
const (
	keyTook    = "took"
	keyOutcome = "outcome"
)
