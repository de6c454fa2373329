package platform

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// Install applies the CustomResourceDefinition of Blueprints, until that succeeded, and returns when ctx ends. It is for
// the leader.
func (p *Platform) Install(ctx context.Context) error {
	const first, last = 100 * time.Millisecond, 30 * time.Second
	for wait := first; ; wait = min(2*wait, last) {
		err := p.install(ctx)
		if err == nil {
			<-ctx.Done()
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		p.log.Error(err, "Blueprints cannot be defined, will retry")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (p *Platform) install(ctx context.Context) error {
	crd, err := blueprint.Manifest()
	if err != nil {
		return err
	}
	// What is applied is the manifest's: not the zero status that its Go type has.
	data, err := json.Marshal(map[string]any{
		"apiVersion": crd.APIVersion, "kind": crd.Kind, "metadata": map[string]any{"name": crd.Name}, "spec": crd.Spec,
	})
	if err != nil {
		return err
	}
	_, err = p.crds.ApiextensionsV1().CustomResourceDefinitions().Patch(ctx, crd.Name, types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: Name, Force: ptr.To(true)})
	if err != nil {
		return fmt.Errorf("apply the CustomResourceDefinition %s: %w", crd.Name, err)
	}
	return nil
}
