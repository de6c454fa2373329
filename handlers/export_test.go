package handlers

// The fake server, for examples.
var (
	NewFakeServer = newFakeServer
	NewMapper     = newMapper
)
