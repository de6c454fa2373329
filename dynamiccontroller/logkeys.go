package dynamiccontroller

// Keys of what is logged.
const (
	keyGVR      = "gvr"
	keyObject   = "object"
	keyKey      = "key"
	keySource   = "source"
	keyError    = "error"
	keyFailures = "failures"
	keyAnew     = "anew"
	keyState    = "state"
	keyMessage  = "message"
	keyStack    = "stack"
	keyWorkers  = "workers"
	keyTypes    = "types"
	keyWatched  = "watched"
)
