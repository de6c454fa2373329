package restmapper

// Keys of log messages.
const (
	keySource       = "source"
	keyGroupVersion = "groupVersion"
	keyError        = "error"
	keyGroups       = "groups"
	keyKind         = "kind"
	keyStack        = "stack"
)
