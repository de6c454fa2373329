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

// createOnlyField is a metadata field that makes an apply fail if the object exists. For all types, the API server
// clears the field in objects that it creates (rest.WipeObjectMetaSystemFields) and rejects updates that change it
// (ValidateObjectMetaAccessorUpdate). No object has the value createOnly; objects that are being deleted can have the
// value 0.
//
// Without this field, an apply could take over an object that someone else created in the meantime: there is no
// conflict if the fields differ or have the same manager. A create request would fail with AlreadyExists, but later
// applies would not remove the fields that a create request has set. In addition, create requests for a new type take
// two seconds.
const (
	createOnlyField       = "deletionGracePeriodSeconds"
	createOnly      int64 = -1
)

// errParentGone is returned if the parent is being deleted or no longer exists.
var errParentGone = errors.New("the parent is gone or is being deleted")

// create creates a child that is assumed not to exist. If the child does exist, the request fails, and later calls read
// the child from the API server. Admission can reject the request before the API server checks whether the child
// exists. After such an error, create therefore reads the child.
func (c *call) create(ctx context.Context, child *child) (*unstructured.Unstructured, error) {
	if err := c.checkParent(ctx); err != nil {
		return nil, err
	}
	now, err := c.write(ctx, child, false, map[string]any{createOnlyField: createOnly})
	if isOutdated(err) {
		c.cache.children[child.id] = appliedChild{}
	}
	if apierrors.IsForbidden(err) {
		if current, readErr := c.readLive(ctx, child); readErr == nil && current != nil {
			return c.applyTo(ctx, child, current)
		}
	}
	return now, err
}

// checkParent reads the parent from the API server before a call creates its first child. The caller's parent can be
// outdated, for example because the cache lags behind the previous leader. If the parent is gone, nothing would delete
// the child. If a kind has been removed from the parent's inventory, the kind must be recorded again.
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
