package platform

// Keys of what is logged.
const (
	keyBlueprint  = "blueprint"
	keyGeneration = "generation"
	keyGVR        = "gvr"
	keyReason     = "reason"
	keyProblem    = "problem"
	keyTook       = "took"
)
