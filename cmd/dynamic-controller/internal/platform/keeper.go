package platform

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// FieldManager owns what the platform writes.
const FieldManager = "dynamic-controller"

const (
	// writeTimeout ends a reconcile, which makes a single small request.
	writeTimeout = 30 * time.Second
	// deniedPause is how long an object waits whose status may not be written.
	deniedPause = 30 * time.Second
)

// keeper keeps the status of a type's objects.
type keeper struct {
	client dynamic.NamespaceableResourceInterface
	engine Engine
	gvr    schema.GroupVersionResource
	rules  statusRules
	// denied: the last write that was answered was forbidden.
	denied atomic.Bool
}

// reconcile writes the object's status if it does not say what it should.
func (k *keeper) reconcile(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	obj, err := k.cached(id)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	patch := nextStatus(obj, k.rules.mergesConditions, time.Now())
	log := logr.FromContextOrDiscard(ctx)
	if patch == nil {
		log.V(1).Info("status is up to date", keyGeneration, obj.GetGeneration())
		return nil
	}
	_, err = k.client.Namespace(obj.GetNamespace()).ApplyStatus(ctx, obj.GetName(), patch,
		metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	return k.settle(log, obj, err)
}

func (k *keeper) cached(id dynamiccontroller.ObjectIdentifiers) (*unstructured.Unstructured, error) {
	lister, err := k.engine.Lister(id.GVR)
	if err != nil {
		return nil, err
	}
	got, err := lister.Get(id.NamespacedKey) // a lister's names are keys
	if err != nil {
		return nil, err
	}
	obj, ok := got.(*unstructured.Unstructured)
	if !ok {
		return nil, dynamiccontroller.Terminal(fmt.Errorf("the cache holds a %T", got))
	}
	return obj, nil
}

// settle says what becomes of the object after its write.
func (k *keeper) settle(log logr.Logger, obj *unstructured.Unstructured, err error) error {
	switch {
	case err == nil:
		if k.denied.Swap(false) {
			log.Info("the status may be written again")
		}
		log.V(1).Info("status written", keyGeneration, obj.GetGeneration())
		return nil
	case apierrors.IsForbidden(err):
		if !k.denied.Swap(true) {
			log.Error(err, "a right is missing, will try again", keyVerb, "patch", keyResource, k.gvr.Resource+"/status")
		}
		return dynamiccontroller.RequeueAfter(deniedPause)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		// The same words will be refused again.
		return dynamiccontroller.Terminal(err)
	default:
		return err
	}
}
