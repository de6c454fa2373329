package dynamiccontroller

// Log keys.
const (
	keyGVR      = "gvr"
	keyObject   = "object"
	keyKey      = "key"
	keySource   = "source"
	keyError    = "error"
	keyCause    = "cause"
	keyLimit    = "limit"
	keyResource = "resource"
	keyReason   = "reason"
	keyRunning  = "running"
	keyFailures = "failures"
	keyState    = "state"
	keyMessage  = "message"
	keyStack    = "stack"
	keyWorkers  = "workers"
	keyWatched  = "watched"
)
