package platform

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// Install applies the Blueprint CustomResourceDefinition, with retries, and then waits until ctx is cancelled. Only
// the leader calls it. Install does not change the CustomResourceDefinition of a newer version of the platform, so that
// an older replica that leads during an upgrade does not remove fields from Blueprints.
func (p *Platform) Install(ctx context.Context) error {
	const first, last = 100 * time.Millisecond, 30 * time.Second
	for delay := first; ctx.Err() == nil; delay = min(2*delay, last) {
		var retry <-chan time.Time // nil after success
		if err := p.install(ctx); err != nil && ctx.Err() == nil {
			if !apierrors.IsConflict(err) { // the next attempt reads the CustomResourceDefinition again
				p.log.Error(err, "Blueprint CustomResourceDefinition not applied, will retry")
			}
			retry = time.After(delay)
		}
		select {
		case <-ctx.Done():
		case <-retry:
		}
	}
	return nil
}

func (p *Platform) install(ctx context.Context) error {
	wanted, err := blueprint.Manifest()
	if err != nil {
		return err
	}
	crds := p.crds.ApiextensionsV1().CustomResourceDefinitions()
	metadata := map[string]any{"name": wanted.Name, "annotations": wanted.Annotations}
	current, err := crds.Get(ctx, wanted.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("read the CustomResourceDefinition %s: %w", wanted.Name, err)
	case isNewer(current, wanted):
		p.log.Info("Newer Blueprint CustomResourceDefinition kept", "revision", revisionOf(current),
			"ownRevision", revisionOf(wanted))
		return nil
	default:
		// The API server rejects the request if another replica has updated the CustomResourceDefinition since it was read.
		metadata["resourceVersion"] = current.ResourceVersion
	}
	// The zero value of the status must not be applied.
	data, err := json.Marshal(map[string]any{
		"apiVersion": wanted.APIVersion, "kind": wanted.Kind, "metadata": metadata, "spec": wanted.Spec,
	})
	if err != nil {
		return err
	}
	_, err = crds.Patch(ctx, wanted.Name, types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: instances.Name, Force: ptr.To(true)})
	if err != nil {
		return fmt.Errorf("apply the CustomResourceDefinition %s: %w", wanted.Name, err)
	}
	return nil
}

func revisionOf(crd *apiextensionsv1.CustomResourceDefinition) string {
	return crd.Annotations[blueprint.ManifestRevisionAnnotation]
}

// isNewer reports whether the current CustomResourceDefinition has a higher revision than the wanted one, or a revision
// that this version cannot read. Versions of the platform that do not set a revision are older.
func isNewer(current, wanted *apiextensionsv1.CustomResourceDefinition) bool {
	if revisionOf(current) == "" {
		return false
	}
	has, err1 := strconv.ParseUint(revisionOf(current), 10, 64)
	wants, err2 := strconv.ParseUint(revisionOf(wanted), 10, 64)
	return err1 != nil || err2 != nil || has > wants
}
