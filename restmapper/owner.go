package restmapper

import "k8s.io/apimachinery/pkg/runtime/schema"

// owner identifies the source that defines the resources of a version. A version has one owner at a time; see
// [catalog.ownerOf].
type owner uint8

const (
	// ownedByService is a version whose APIService does not belong to a CRD, even if CRDs claim the version.
	ownedByService owner = iota
	// ownedByCRDs is a version that at least one CRD claims.
	ownedByCRDs
	// ownedByNone is a version with a tombstone: the watches have reported that its last owner was removed.
	ownedByNone
	// ownedByAggregator is a version of aggregatorGroup, which has no APIService.
	ownedByAggregator
	// ownedByUnseenCRD is a version without an APIService and a CRD, on an API server with APIServices. A kube-apiserver
	// has an APIService for each version except those of aggregatorGroup. The version therefore belongs to a CRD that one
	// of the watches has not delivered yet, or cannot deliver because of a missing permission.
	ownedByUnseenCRD
	// ownedByUnknown is a version without a CRD, if no APIService is known.
	ownedByUnknown
)

// position determines the order of the groups and versions of an owner.
type position uint8

const (
	noPosition         position = iota // has no resources
	positionOfService                  // the priorities in the APIService
	positionOfCRD                      // the priorities that the API server gives to all CRDs
	positionInDocument                 // the position in the discovery document; precedes all priorities
)

// ownerRules describes how the catalog treats the versions of an owner.
type ownerRules struct {
	// documents is true if the discovery documents define the resources. Otherwise, the documents are ignored.
	documents bool
	// keepUnlisted is true if a version that the document does not list is kept and read separately, because its
	// APIService can be newer than the document. Otherwise, such a version is removed.
	keepUnlisted bool
	// confirm is true if the document that listed the version for the first time can be outdated: the version may have
	// belonged to a CRD that was deleted. The documents are then read once more; see [catalog.nextCheck].
	confirm  bool
	position position
}

// ownerTable contains the rules for each owner.
var ownerTable = [...]ownerRules{
	ownedByService:    {documents: true, keepUnlisted: true, position: positionOfService},
	ownedByCRDs:       {position: positionOfCRD},
	ownedByNone:       {},
	ownedByAggregator: {documents: true, position: positionInDocument},
	ownedByUnseenCRD:  {documents: true, confirm: true, position: positionOfCRD},
	ownedByUnknown:    {documents: true, confirm: true, position: positionInDocument},
}

// ownerOf returns the owner of a version.
func (c *catalog) ownerOf(gv schema.GroupVersion) owner {
	switch d := c.discovered[gv.Group][gv.Version]; {
	case d != nil && d.service != nil:
		return ownedByService
	case c.isClaimed(gv):
		return ownedByCRDs
	case c.tombstones.has(gv):
		return ownedByNone
	case c.services == 0:
		return ownedByUnknown
	case gv.Group == aggregatorGroup:
		return ownedByAggregator
	}
	return ownedByUnseenCRD
}

// rulesOf returns the rules for a version.
func (c *catalog) rulesOf(group, version string) ownerRules {
	return ownerTable[c.ownerOf(schema.GroupVersion{Group: group, Version: version})]
}
