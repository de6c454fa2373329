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

// createOnlyVersion is a resourceVersion that no object has: the largest revision of etcd. An apply with a
// resourceVersion is rejected with a conflict if the object exists with another one. If the object does not exist, the
// API server creates it and ignores the resourceVersion. An API server that did not ignore it would reject the create,
// and could not overwrite an object either.
//
// Without the resourceVersion, an apply could take over an object that someone else created in the meantime: there is
// no conflict if the fields differ or have the same manager. A POST would fail with AlreadyExists, but later applies
// would not remove the fields that it has set, because their manager has the operation Update. In addition, a POST of a
// new type takes two seconds.
const createOnlyVersion = "9223372036854775807"

// errParentGone is returned if the parent is being deleted or no longer exists.
var errParentGone = errors.New("the parent is gone or is being deleted")

// errParentUnread is returned instead of creating a child before the parent has been read from the API server.
var errParentUnread = errors.New("the parent must be read before creating")

// create creates a child that is assumed not to exist. If the child does exist, the request fails with a conflict, and
// later calls read the child from the API server. Admission or validation can reject the request before the API server
// compares the versions. After such an error, create therefore reads the child.
func (c *call) create(ctx context.Context, child *child) (*unstructured.Unstructured, error) {
	if err := child.checkDeletions(); err != nil {
		return nil, err
	}
	if !c.parentExists {
		child.found = &found{}
		return nil, errParentUnread
	}
	if err := c.checkCreate(child); err != nil {
		return nil, err
	}
	child.config = child.template
	metadata := c.noteRecreation(child, map[string]any{"resourceVersion": createOnlyVersion})
	now, err := c.write(ctx, child, false, metadata)
	if err == nil {
		return now, child.created()
	}
	if apierrors.IsConflict(err) {
		child.entry.reset()
		child.entry.known = true
	}
	if apierrors.IsForbidden(err) || isSecondController(err) || isUnexplained(err) {
		if current, readErr := c.readLive(ctx, child); readErr == nil && current != nil {
			return c.applyTo(ctx, child, current)
		}
	}
	return now, c.judge(ctx, child, nil, err)
}

// checkCreate returns an error if a child must not be created.
func (c *call) checkCreate(child *child) error {
	if err := c.checkRecorded(child); err != nil { // checkParent can have changed the inventory
		return err
	}
	return c.checkWitness(child)
}

// checkParent reads the parent from the API server before a call creates its first child. The caller's parent can be
// outdated, for example because the cache lags behind the previous leader. If the parent is gone, nothing would delete
// the child. If a kind has been removed from the parent's inventory, the kind must be recorded again.
func (c *call) checkParent(ctx context.Context) error {
	if c.parentExists {
		return nil
	}
	now, err := c.readParent(ctx)
	if err != nil {
		return err
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

// readParent reads the parent from the API server. It returns errParentGone if the parent is being deleted or no longer
// exists.
func (c *call) readParent(ctx context.Context) (*unstructured.Unstructured, error) {
	now, err := c.parents(c.id).Get(ctx, c.id.Name(), metav1.GetOptions{})
	switch {
	case patch.IsGone(err):
		return nil, errParentGone
	case err != nil:
		return nil, fmt.Errorf("read the parent before creating: %w", err)
	case now.GetUID() != c.parent.GetUID() || now.GetDeletionTimestamp() != nil:
		return nil, errParentGone
	}
	return now, nil
}

// isSecondController reports whether a write was rejected because of the owner references, of which at most one can be
// a controller.
func isSecondController(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Field == "metadata.ownerReferences"
	})
}
