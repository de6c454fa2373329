package acceptance

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// newCleanUp returns a revision for which only deletions of instances are processed. Children are deleted with the
// ServiceAccount of the newest stored revision or, if none is stored, with that of the Blueprint.
func newCleanUp(b *blueprint.Blueprint, gvr schema.GroupVersionResource, newest *revision) *servedRevision {
	spec := blueprint.Spec{Type: b.Spec.Type, ServiceAccountName: b.Spec.ServiceAccountName}
	if newest != nil {
		spec.ServiceAccountName = newest.serviceAccount
	}
	return &servedRevision{
		inputs: fmt.Sprintf("clean up for %s as %q", b.UID, spec.ServiceAccountName), generation: b.Generation,
		Revision: instances.Revision{Blueprint: b.Name, GVR: gvr, Spec: spec},
	}
}

// selectRevision returns the revision to serve, or nil if nothing can be served. It also returns the permissions that
// are missing for a stored revision. The returned revision is always stored, unless only deletions are processed. If
// the type does not exist and no revision is stored, there are no instances to clean up.
func (r *definitionReconciler) selectRevision(
	ctx context.Context, b *blueprint.Blueprint, own claim, d *decision, stored history,
) (*servedRevision, []permission, error) {
	newest := stored.newest(b.UID)
	var cleanUp *servedRevision
	if d.hasCRD || newest != nil {
		cleanUp = newCleanUp(b, d.gvr, newest)
	}
	switch {
	case d.gvr.Empty() && d.rejection != nil:
		return nil, nil, nil // the type does not belong to this Blueprint
	case d.gvr.Empty() && !d.deleting:
		return d.running, nil, nil // the type is unknown
	case d.deleting && d.gvr.Empty():
		return nil, nil, nil
	case d.deleting || d.lacksConsent():
		return cleanUp, nil, nil
	}
	if d.revision != nil && newest != nil && newest.Name == d.revision.Name {
		return d.revision, nil, nil
	}
	// The newest generation is rejected, or its type or its spec has not been stored yet. The previous one remains served.
	if !d.cleansUpOnly() && (d.rejection == nil || stored.get(b.UID, d.running.Name) != nil) ||
		d.rejected() == nil && newest == nil {
		return d.running, nil, nil
	}
	if newest == nil {
		return cleanUp, nil, nil
	}
	// Repeat this on each call: a missing permission or type may have been added.
	loaded, missing, err := r.load(ctx, b, own, newest)
	if err != nil || loaded.revision != nil {
		return loaded.revision, missing, err
	}
	d.loadRejection = loaded.rejection
	return cleanUp, missing, nil
}

// load validates a stored revision in the same way as a new generation.
func (r *definitionReconciler) load(
	ctx context.Context, b *blueprint.Blueprint, own claim, stored *revision,
) (validation, []permission, error) {
	restored, err := r.store.restore(ctx, b, stored)
	if err != nil {
		return validation{}, nil, err
	}
	if name := blueprint.DefinitionName(restored); name != own.crd {
		return validation{rejection: &rejection{reasonInvalid,
			fmt.Sprintf("revision %s defines a different type (%s)", stored.Name, name)}}, nil, nil
	}
	loaded, missing, err := r.validator.validate(ctx, restored, own, validation{}, r.validator.memory.reject)
	if err != nil {
		return validation{}, nil, fmt.Errorf("load revision %s: %w", stored.Name, err)
	}
	if loaded.revision != nil {
		loaded.revision.Name = stored.Name
	}
	return loaded, missing, nil
}
