package replica

// Keys of what is logged.
const (
	keyLease    = "lease"
	keyIdentity = "identity"
	keyLeader   = "leader"
	keyTerm     = "term"
	keyRunning  = "running"
	keyCause    = "cause"
	keyError    = "error"
	keyAfter    = "after"
	keyVerb     = "verb"
	keyResource = "resource"
)
