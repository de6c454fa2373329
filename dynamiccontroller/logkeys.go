package dynamiccontroller

// Keys of what is logged.
const (
	keyGVR      = "gvr"
	keyObject   = "object"
	keyError    = "error"
	keyFailures = "failures"
	keyDelay    = "delay"
	keyState    = "state"
	keyMessage  = "message"
	keyStack    = "stack"
	keyWorkers  = "workers"
	keyTypes    = "types"
)
