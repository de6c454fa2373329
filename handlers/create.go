package handlers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// onlyIfNew is a field of metadata that makes an apply a creation or nothing. The API server clears it in what it creates
// (rest.FillObjectMetaSystemFields) and lets no update set it (ValidateObjectMetaAccessorUpdate), of any type. Without it an
// apply merges with what somebody made since it was looked for, and takes that over: no force, no conflict, if its fields
// are others, or are the same manager's. A POST would say AlreadyExists, but leaves fields that no later apply removes, and
// takes two seconds for a type that is new.
const onlyIfNew = "deletionGracePeriodSeconds"

// errParentGone tells that the parent is being deleted, or is gone.
var errParentGone = errors.New("the parent is being deleted, or gone")

// create makes a child that was not there when it was looked for.
func (p *pass) create(ctx context.Context, child *child) (*unstructured.Unstructured, error) {
	if err := p.mayCreate(ctx); err != nil {
		return nil, err
	}
	return p.write(ctx, child, false, map[string]any{onlyIfNew: int64(0)})
}

// mayCreate reads the parent live before the first creation of a pass. The cache of a replica that leads now may not show yet
// what the one before saw: that the parent is gone, in which case nothing would ever delete the child, or that a kind was
// struck off its inventory.
func (p *pass) mayCreate(ctx context.Context) error {
	if p.isAlive {
		return nil
	}
	now, err := p.parents(p.id).Get(ctx, p.id.Name(), metav1.GetOptions{})
	switch {
	case isGoneOrReplaced(err), err == nil && (now.GetUID() != p.parent.GetUID() || now.GetDeletionTimestamp() != nil):
		return errParentGone
	case err != nil:
		return fmt.Errorf("read the parent anew before creating: %w", err)
	}
	if gone, err := p.prepare(ctx, now); err != nil {
		return err
	} else if gone {
		return errParentGone
	}
	adoptMetadata(p.parent, now)
	p.isAlive = true
	return nil
}

// existsAlready tells whether a creation was refused because there is such an object by now.
func existsAlready(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Field == "metadata."+onlyIfNew
	})
}
