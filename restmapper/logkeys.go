package restmapper

// Keys of what is logged.
const (
	keyGroupVersion = "groupVersion"
	keyError        = "error"
	keyGroups       = "groups"
)
