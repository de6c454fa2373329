package children

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/handlers/children/internal/act"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
)

// target is the object of an operation, as it was seen last.
type target struct {
	id     childID
	kind   schema.GroupKind
	object *unstructured.Unstructured // nil if it did not exist
}

// perform performs an operation, except MayCreate, which apply handles.
func (d *deletion) perform(ctx context.Context, target target, operation decide.Operation) (answer decide.Answer) {
	switch operation.Kind {
	case decide.ReadParent:
		_, answer.Err = d.readParent(ctx)
	case decide.ReadNamespace:
		answer.Namespace, answer.Err = d.namespaceUID()
	case decide.MayAdopt:
		answer.Err = d.canAdopt()
	case decide.LookUp:
		gvk := operation.Object.GroupVersionKind()
		_, answer.Err = d.config.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	default:
		child := act.Child{Client: d.as.Client, ID: target.id}
		if d.planner != nil {
			answer = d.planner.perform(ctx, child, target, operation)
		} else {
			answer = child.Do(ctx, operation)
		}
	}
	answer.At = time.Now()
	return answer
}

// remove performs the operations of a decision about an object that is not desired.
func (d *deletion) remove(ctx context.Context, target target, decision *decide.Decision) decide.Verdict {
	defer decision.Stop()
	operation, more := decision.First()
	for more {
		answer := d.perform(ctx, target, operation)
		if operation.Kind == decide.Delete && answer.Err == nil {
			d.own.recordDeleted(target.id, limitOf(operation))
		}
		operation, more = decision.Next(answer)
	}
	return decision.Verdict()
}

// limitOf returns the version of an object that an operation is limited to.
func limitOf(operation decide.Operation) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{UID: operation.UID, ResourceVersion: operation.ResourceVersion}
}
