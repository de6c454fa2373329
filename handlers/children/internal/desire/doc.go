// Package desire turns the desired state of a parent's children into identified, hashed and ordered children. It is
// pure: it has no client, no clock and no lock, and sends no requests.
//
//	Desired ──▶ Decoded ──▶ New ──▶ Set of Child ──▶ package decide
//	                         ▲
//	              Input: the parent, settings, kinds
//
// [New] checks each child and returns an error that joins those of all invalid children. A valid child gets:
//
//	part                         its value
//	metadata.namespace           its own, or that of the parent
//	metadata.ownerReferences     the parent as controller, if it has an effect and the child is not retained
//	the mark                     labels and annotations that identify the parent, for all other children
//	the hash                     a digest of the configuration without the values of kept fields, and one of the names
//	the stage and the group      the order in which children are applied
//
// If the API server does not know the kind of a child yet, or lacks verbs for it, only this child has an error: an
// earlier stage can define the kind.
package desire
