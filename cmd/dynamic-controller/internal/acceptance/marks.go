package acceptance

// This file exports the metadata that the platform adds to objects, for programs that remove it.

const (
	// Finalizer is the finalizer of Blueprints.
	Finalizer = finalizer
	// OwnerUIDAnnotation is set on a CustomResourceDefinition that was created for a Blueprint, until the Blueprint is
	// deleted and the type is retained.
	OwnerUIDAnnotation = ownerUIDAnnotation
	// RevisionLabel is a label on the ControllerRevisions that store accepted specs.
	RevisionLabel = blueprintLabel
)
