package acceptance

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// refusalInterval is the minimum time between two attempts to apply a CustomResourceDefinition that the API server
// refuses. No event reports that the reason for the refusal, such as an admission policy, has disappeared.
const refusalInterval = 10 * time.Second

// adoption is the result of an attempt to adopt a generation. All fields are nil if there was nothing to do or if
// everything succeeded.
type adoption struct {
	// refusal is set if the API server refuses the type of a generation that is not served yet.
	refusal *rejection
	// typeErr is any other error when the type of a generation that is not served yet is applied.
	typeErr error
	// repairErr is an error when the type of the served generation is applied again, because others have changed or
	// deleted it.
	repairErr error
	// storeErr is an error when the spec is stored.
	storeErr error
}

// adopt applies the CustomResourceDefinition of an accepted generation, and then stores its spec. A spec is served only
// after it has been stored. If a step fails, the previous generation therefore remains served on all replicas, also
// after a restart.
//
// The type must change first, because the templates of a served spec must not refer to fields that the type lacks. If
// the process stops between the two steps, or if the spec cannot be stored, the type is newer than the served spec. All
// fields of the served spec then still exist, unless the author has allowed an incompatible change. In that case,
// instances that lack a field report an error and keep their children. To make this rare, the type is not changed if a
// dry run shows that the spec cannot be stored.
func (r *blueprintReconciler) adopt(ctx context.Context, b *blueprint.Blueprint, d decision) (adoption, error) {
	wanted, current, err := r.crds.outdated(b, d)
	if err != nil {
		return adoption{}, err
	}
	if wanted != nil {
		// If the spec is not stored, the type must not change either: it would then be that of an outdated generation.
		if stored, err := r.store.store(ctx, b, d, metav1.DryRunAll); err != nil || !stored {
			return adoption{storeErr: err}, nil
		}
		applied, applyErr := r.crds.apply(ctx, b, wanted, current)
		if applyErr != nil {
			return r.notApplied(b, d, applyErr)
		}
		if !applied {
			return adoption{}, nil
		}
	}
	_, err = r.store.store(ctx, b, d)
	return adoption{storeErr: err}, nil
}

// repair applies the CustomResourceDefinition of the served generation, if others have changed or deleted it. It is
// called while that of the newest generation cannot be applied.
func (r *blueprintReconciler) repair(ctx context.Context, b *blueprint.Blueprint, d decision) error {
	wanted, current, err := r.crds.damaged(b, d)
	if err == nil && wanted != nil {
		_, err = r.crds.apply(ctx, b, wanted, current)
	}
	return err
}

// notApplied returns the result if the CustomResourceDefinition could not be applied.
func (r *blueprintReconciler) notApplied(b *blueprint.Blueprint, d decision, applyErr error) (adoption, error) {
	h, err := r.store.cache.history(b.Name)
	if err != nil {
		return adoption{}, err
	}
	newest := h.newest(b.UID)
	switch isNew := d.revision != nil && (newest == nil || newest.Name != d.revision.Name); {
	case !isNew:
		return adoption{repairErr: applyErr}, nil
	case isRefusal(applyErr):
		return adoption{refusal: &rejection{reasonServerRejected, instances.Truncate(applyErr.Error())}}, nil
	}
	return adoption{typeErr: applyErr}, nil
}

// isRefusal reports whether the error is a decision of the API server or of an admission plugin. After other errors,
// such as timeouts, the same request can succeed.
func isRefusal(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
}

// adoptOrWait adopts the generation of the decision d, and sets d.refusal. After a refusal, it only repairs the type of
// the served generation until refusalInterval has passed. wait is the remaining time, or 0 if the generation is not
// refused.
func (r *blueprintReconciler) adoptOrWait(
	ctx context.Context, b *blueprint.Blueprint, d *decision,
) (result adoption, wait time.Duration, err error) {
	if d.refusal == nil {
		r.refusals.Forget(b.Name)
	} else if wait = r.refusals.Wait(b.Name, refusalInterval); wait > 0 {
		return adoption{repairErr: r.repair(ctx, b, *d)}, wait, nil
	}
	if result, err = r.adopt(ctx, b, *d); err != nil {
		return result, 0, err
	}
	if result.refusal != nil || result.typeErr != nil {
		result.repairErr = r.repair(ctx, b, *d)
	}
	if d.refusal = result.refusal; d.refusal != nil {
		wait = cmp.Or(r.refusals.Wait(b.Name, refusalInterval), refusalInterval)
	}
	if r.registry.setRefusal(b.Name, *d) {
		r.definitions.Enqueue(instances.BlueprintID(b.Name))
	}
	return result, wait, nil
}

// report adds the errors to the conditions.
func (a adoption) report(d decision, c *conditions) {
	if a.typeErr != nil {
		c.accepted = falseCondition(blueprint.Accepted, reasonNotApplied, instances.Truncate(a.typeErr.Error()))
		c.accepted.Status = metav1.ConditionUnknown
	}
	if a.repairErr != nil {
		message := instances.Truncate(a.repairErr.Error())
		c.established = falseCondition(blueprint.TypeEstablished, reasonServerRejected, message)
	}
	if a.storeErr != nil {
		c.serving = notStored(d, c.serving, a.storeErr)
	}
}

// err returns the error after which the Blueprint must be retried with a backoff.
func (a adoption) err() error { return cmp.Or(a.storeErr, a.typeErr, a.repairErr) }
