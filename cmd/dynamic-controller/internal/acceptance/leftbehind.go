package acceptance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// unservedPeriod is the time for which the deletion of a Blueprint waits until its established type is served. The
// types of one replica of the API server can lag behind those of another.
const unservedPeriod = 10 * time.Second

// errUnlisted is returned if the API server does not support listing instances, or does not serve their type.
var errUnlisted = errors.New("the API server does not list the instances")

// continues reports whether the deletion of a Blueprint continues although listing its instances has failed with err.
// If the type does not exist, there are no instances, and both results are zero.
func (t *teardown) continues(ctx context.Context, b *blueprint.Blueprint, err error) (bool, error) {
	switch {
	case !errors.Is(err, errUnlisted):
		return false, err
	case apierrors.IsMethodNotSupported(err):
		return true, nil
	}
	served, readErr := t.crds.isServed(ctx, blueprint.DefinitionName(b))
	switch {
	case readErr != nil:
		return false, readErr
	case !served:
		return false, nil
	case time.Since(b.DeletionTimestamp.Time) < unservedPeriod:
		return false, err
	}
	return true, nil
}

// lacksVersion reports whether the Blueprint's type was served and exists, but no version of it is served any longer.
func (d decision) lacksVersion() bool {
	isOwn := !d.rejection.is(reasonClaimed) && !d.rejection.is(reasonNotOwned)
	return d.gvr.Empty() && d.served && d.hasCRD && isOwn
}

// isServed reads a CustomResourceDefinition from the API server and reports whether its type is established and not
// being deleted.
func (a *crdApplier) isServed(ctx context.Context, name string) (bool, error) {
	current, err := a.crds.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the CustomResourceDefinition %s: %w", name, err)
	}
	return current.DeletionTimestamp == nil && apihelpers.IsCRDConditionTrue(current, apiextensionsv1.Established), nil
}

// reportLeftBehind writes to the status of a Blueprint that its instances could not be listed. It is called before the
// platform's finalizer is removed.
func (t *teardown) reportLeftBehind(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured,
	b *blueprint.Blueprint, d decision,
) error {
	conditions, err := t.status.conditionsFor(b, d)
	if err != nil {
		return err
	}
	conditions.serving = falseCondition(blueprint.Serving, reasonLeftBehind, fmt.Sprintf(
		"the deletion continues without the instances of %s, which can still exist and have the finalizer %s, because the "+
			"API server does not list them", blueprint.DefinitionName(b), instances.ChildrenFinalizer))
	err = t.status.write(ctx, id, object, conditions, d)
	if _, again := dynamiccontroller.RequeueDelay(err); again {
		return nil // the status is written again only if the Blueprint remains
	}
	return err
}
