package platform

// Keys of what is logged.
const (
	keyGVR        = "gvr"
	keyTook       = "took"
	keyProblem    = "problem"
	keyCRD        = "crd"
	keyGeneration = "generation"
	keyResource   = "resource"
	keyVerb       = "verb"
)
