package children

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/handlers/internal/patch"
)

// createOnlyField is a field of the metadata that makes an apply fail if the object exists. The API server clears it in
// objects that it creates (rest.FillObjectMetaSystemFields) and rejects updates that set it
// (ValidateObjectMetaAccessorUpdate), for all types.
//
// Without this field, an apply would merge with an object that someone else created in the meantime, and would take
// over that object: there is no conflict if the fields differ or have the same manager. A create request would return
// AlreadyExists. However, later applies would not remove fields that a create request set, and a create request for a
// new type takes two seconds.
const createOnlyField = "deletionGracePeriodSeconds"

// errParentGone is returned when the parent is being deleted, or is gone.
var errParentGone = errors.New("the parent is being deleted or gone")

// create creates a child that did not exist when it was read.
func (c *call) create(ctx context.Context, child *child) (*unstructured.Unstructured, error) {
	if err := c.checkParent(ctx); err != nil {
		return nil, err
	}
	return c.write(ctx, child, false, map[string]any{createOnlyField: int64(0)})
}

// checkParent reads the parent from the API server before the first child of a call is created. The cache can lag
// behind the previous leader: the parent may be gone, so that nothing would delete the child, or a kind may have been
// removed from the parent's inventory.
func (c *call) checkParent(ctx context.Context) error {
	if c.parentExists {
		return nil
	}
	now, err := c.parents(c.id).Get(ctx, c.id.Name(), metav1.GetOptions{})
	switch {
	case patch.IsGone(err):
		return errParentGone
	case err != nil:
		return fmt.Errorf("read the parent before creating: %w", err)
	case now.GetUID() != c.parent.GetUID() || now.GetDeletionTimestamp() != nil:
		return errParentGone
	}
	if gone, err := c.prepareParent(ctx, now); err != nil {
		return err
	} else if gone {
		return errParentGone
	}
	updateMetadata(c.parent, now)
	c.parentExists = true
	return nil
}

// existsAlready reports whether a create was rejected because the object exists.
func existsAlready(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Field == "metadata."+createOnlyField
	})
}
