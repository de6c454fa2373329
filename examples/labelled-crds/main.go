// Labelled-crds is a small platform: it serves every type whose CustomResourceDefinition carries a label, from the moment
// the label is there until it is gone, or the type is.
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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
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
// on the other. A busy or hung type takes no worker from those that start and stop types.
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

// run returns when ctx has ended, and with it all that was started here.
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
	if err := types.StartServingGVK(ctx, definitions, p.reconcileType, dynamiccontroller.WithLabelSelector(labelled)); err != nil {
		return err
	}
	ended := make(chan error)
	go func() { ended <- types.Run(ctx) }()
	go func() { ended <- objects.Run(ctx) }()
	return errors.Join(<-ended, <-ended)
}

// reconcileType makes what is served of a type what its definition asks for.
func (p platform) reconcileType(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	want, err := p.wanted(id)
	if err != nil {
		return err
	}
	// What is served is asked of the engine, and not kept here a second time. A definition's name is that of its type.
	for _, served := range p.objects.Status() {
		if served.GVR == want {
			return nil
		}
		if served.GVR.GroupResource().String() == id.Name() {
			if err := p.objects.StopServiceGVK(ctx, served.GVR); err != nil {
				return err
			}
		}
	}
	if want.Empty() {
		return nil
	}
	// Metadata is all that reconcileObject reads, and takes the least memory.
	return p.objects.StartServingGVK(ctx, want, p.reconcileObject, dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata))
}

// wanted is the GVR that a definition wants to be served: in the version in which it is stored, so that nothing is
// converted. It is empty if the definition is gone, has lost its label, which looks the same from here, or is not
// established yet.
func (p platform) wanted(id dynamiccontroller.ObjectIdentifiers) (schema.GroupVersionResource, error) {
	none := schema.GroupVersionResource{}
	lister, err := p.types.Lister(id.GVR)
	if err != nil {
		return none, err
	}
	obj, err := lister.Get(id.Name())
	if apierrors.IsNotFound(err) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.(*unstructured.Unstructured).Object, crd); err != nil {
		return none, dynamiccontroller.Terminal(err) // the same will be read the same
	}
	if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		return none, nil
	}
	for _, version := range crd.Spec.Versions {
		if version.Storage && version.Served {
			return schema.GroupVersionResource{Group: crd.Spec.Group, Version: version.Name, Resource: crd.Spec.Names.Plural}, nil
		}
	}
	return none, nil
}

// reconcileObject is where a platform would do something for the objects of all its types.
func (p platform) reconcileObject(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	lister, err := p.objects.Lister(id.GVR)
	if err != nil {
		return err
	}
	obj, err := lister.Get(id.NamespacedKey) // a lister's names are keys
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
