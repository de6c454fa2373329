// Labelled-crds is a small platform that serves every type whose CustomResourceDefinition has a label. It stops serving
// the type when the label or the CustomResourceDefinition is removed.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

var (
	labelled    = labels.SelectorFromSet(labels.Set{"labelled.example.com/serve": "true"})
	definitions = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
)

// platform has two engines. One serves a single type, CustomResourceDefinition, and its handler starts and stops types
// on the other one. Busy or hung types therefore never use the workers that start and stop types.
type platform struct {
	types   *dynamiccontroller.DynamicController
	objects *dynamiccontroller.DynamicController
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		klog.Exit(err)
	}
}

// run blocks until ctx is cancelled and everything it started has stopped.
func run(ctx context.Context) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	log, config := klog.Background(), dynamiccontroller.Config{}
	types, err := dynamiccontroller.NewForConfig(log.WithName("types"), config, cfg)
	if err != nil {
		return err
	}
	objects, err := dynamiccontroller.NewForConfig(log.WithName("objects"), config, cfg)
	if err != nil {
		return err
	}
	p := platform{types: types, objects: objects}
	err = types.StartServingGVK(ctx, definitions, p.reconcileType, dynamiccontroller.WithLabelSelector(labelled))
	if err != nil {
		return err
	}
	ended := make(chan error)
	go func() { ended <- types.Run(ctx) }()
	go func() { ended <- objects.Run(ctx) }()
	return errors.Join(<-ended, <-ended)
}

// reconcileType serves a type as its definition requires, or stops serving it.
func (p platform) reconcileType(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	desired, err := p.desired(id)
	if err != nil {
		return err
	}
	if _, err := p.objects.TypeStatusOf(desired); err == nil {
		return nil // already served
	}
	// Another version can be served. The name of a definition is the group resource that it defines.
	for _, served := range p.objects.Status() {
		if served.GVR.GroupResource().String() == id.Name() {
			if err := p.objects.StopServiceGVK(ctx, served.GVR); err != nil {
				return err
			}
		}
	}
	if desired.Empty() {
		return nil
	}
	// reconcileObject reads only metadata.
	metadata := dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata)
	return p.objects.StartServingGVK(ctx, desired, p.reconcileObject, metadata)
}

// desired returns the GVR to serve for a definition. The GVR has the storage version, so that no objects are converted.
// It is empty if the definition was deleted, has lost its label, or is not established yet.
func (p platform) desired(id dynamiccontroller.ObjectIdentifiers) (schema.GroupVersionResource, error) {
	none := schema.GroupVersionResource{}
	lister, err := p.types.Lister(id.GVR)
	if err != nil {
		return none, err
	}
	typed, err := dynamiccontroller.NewTypedLister[apiextensionsv1.CustomResourceDefinition](lister)
	if err != nil {
		return none, err
	}
	crd, err := typed.Get(id.NamespacedKey)
	if apierrors.IsNotFound(err) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		return none, nil
	}
	for _, version := range crd.Spec.Versions {
		if version.Storage && version.Served {
			gvr := schema.GroupVersionResource{Group: crd.Spec.Group, Version: version.Name, Resource: crd.Spec.Names.Plural}
			return gvr, nil
		}
	}
	return none, nil
}

// reconcileObject reconciles the objects of all types that the platform serves.
func (p platform) reconcileObject(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	lister, err := p.objects.Lister(id.GVR)
	if err != nil {
		return err
	}
	obj, err := lister.Get(id.NamespacedKey) // a lister accepts keys as names
	if apierrors.IsNotFound(err) {
		fmt.Println(id, "is gone")
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Println(id, "is at generation", obj.(*metav1.PartialObjectMetadata).Generation)
	return nil
}
