package platform

import (
	"context"
	"fmt"
	"maps"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// define creates or updates the CustomResourceDefinition of an accepted Blueprint. If the newest generation is refused, it
// applies the definition of the served one, because the last leader may have ended before it applied that.
func (p *Platform) define(ctx context.Context, b *blueprint.Blueprint, d decision) error {
	definition, schema := d.definitionToApply()
	if definition == nil || d.ending {
		return nil
	}
	wanted := definition.DeepCopy()
	wanted.Annotations = map[string]string{madeForKey: b.Name, madeByKey: string(b.UID), schemaKey: schema}
	there, err := p.crdOf(wanted.Name)
	if err != nil {
		return err
	}
	if there == nil {
		return p.create(ctx, b, wanted)
	}
	if !isMadeFor(there, b) || p.defined.isCurrent(wanted, there) {
		return nil
	}
	next := there.DeepCopy()
	next.Spec = wanted.Spec
	next.Annotations = maps.Clone(there.Annotations)
	maps.Copy(next.Annotations, wanted.Annotations)
	now, err := p.crds.ApiextensionsV1().CustomResourceDefinitions().Update(ctx, next, metav1.UpdateOptions{FieldManager: Name})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the cache lags: its event brings the Blueprint back
	}
	if err != nil {
		return fmt.Errorf("change the CustomResourceDefinition: %w", err)
	}
	p.defined.remember(wanted, now)
	return nil
}

// create makes a definition that there is not. One that somebody else makes at this moment is theirs. The Blueprint is read
// live before: the cache of one who begins to lead may lag, and a definition of a Blueprint that is gone is deleted by nobody.
func (p *Platform) create(ctx context.Context, b *blueprint.Blueprint, wanted *apiextensionsv1.CustomResourceDefinition) error {
	live, err := p.client.Resource(blueprints).Get(ctx, b.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (live.GetUID() != b.UID || live.GetDeletionTimestamp() != nil) {
		return nil // its event brings the Blueprint back
	}
	if err != nil {
		return fmt.Errorf("read the Blueprint before its CustomResourceDefinition is made: %w", err)
	}
	now, err := p.crds.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, wanted, metav1.CreateOptions{FieldManager: Name})
	if apierrors.IsAlreadyExists(err) {
		return nil // its event brings the Blueprint back
	}
	if err != nil {
		return fmt.Errorf("make the CustomResourceDefinition: %w", err)
	}
	p.defined.remember(wanted, now)
	return nil
}

// defined remembers what came of definitions that were written, for the API server may write a value in another way than
// it was given.
type defined struct {
	mu      sync.Mutex // guards written
	written map[string]definedAs
}

type definedAs struct {
	spec       apiextensionsv1.CustomResourceDefinitionSpec // as wanted
	generation int64                                        // that came of it
}

func (d *defined) remember(wanted, now *apiextensionsv1.CustomResourceDefinition) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.written == nil {
		d.written = map[string]definedAs{}
	}
	d.written[wanted.Name] = definedAs{wanted.Spec, now.Generation}
}

func (d *defined) forget(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.written, name)
}

// isCurrent tells whether a definition is what it should be.
func (d *defined) isCurrent(wanted, there *apiextensionsv1.CustomResourceDefinition) bool {
	for key, value := range wanted.Annotations {
		if there.Annotations[key] != value {
			return false
		}
	}
	d.mu.Lock()
	before := d.written[wanted.Name]
	d.mu.Unlock()
	if before.generation >= there.Generation && equality.Semantic.DeepEqual(before.spec, wanted.Spec) {
		return true
	}
	defaulted := wanted.DeepCopy()
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(defaulted)
	return equality.Semantic.DeepEqual(defaulted.Spec, there.Spec)
}

// leaveBehind makes a definition nobody's, for a Blueprint of the same name that may come.
func (p *Platform) leaveBehind(ctx context.Context, name string, b *blueprint.Blueprint) error {
	crds := p.crds.ApiextensionsV1().CustomResourceDefinitions()
	there, err := crds.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && there.Annotations[madeByKey] != string(b.UID) {
		return nil
	}
	if err == nil {
		delete(there.Annotations, madeByKey)
		_, err = crds.Update(ctx, there, metav1.UpdateOptions{FieldManager: Name})
	}
	if err != nil {
		return fmt.Errorf("leave the CustomResourceDefinition %s behind: %w", name, err)
	}
	return nil
}

// undefine deletes a definition if it was made for the Blueprint, and tells whether it is gone.
func (p *Platform) undefine(ctx context.Context, name string, b *blueprint.Blueprint) (gone bool, err error) {
	crds := p.crds.ApiextensionsV1().CustomResourceDefinitions()
	there, err := crds.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && there.Annotations[madeByKey] != string(b.UID):
		return true, nil
	case err == nil && there.DeletionTimestamp == nil:
		err = crds.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
			UID: ptr.To(there.UID), ResourceVersion: ptr.To(there.ResourceVersion),
		}})
	}
	if err != nil {
		return false, fmt.Errorf("delete the CustomResourceDefinition %s: %w", name, err)
	}
	return false, nil
}
