package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

const (
	group         = "demo.example.com"
	blueprintName = "webapps"
	crdName       = "webapps." + group
	blueprintsCRD = "blueprints.platform.example.com"
)

//go:embed webapps.yaml
var webappsYAML string

var (
	blueprints  = schema.GroupVersionResource{Group: "platform.example.com", Version: "v1alpha1", Resource: "blueprints"}
	webapps     = schema.GroupVersionResource{Group: group, Version: "v1", Resource: "webapps"}
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	services    = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

// in is where the objects of a type are that the demonstration uses: all but Blueprints in the default namespace.
func (c *theCluster) in(gvr schema.GroupVersionResource) dynamic.ResourceInterface {
	if gvr == blueprints {
		return c.dynamic.Resource(gvr)
	}
	return c.dynamic.Resource(gvr).Namespace(metav1.NamespaceDefault)
}

// applyBlueprint does as kubectl apply does, with texts of the Blueprint replaced, and returns its generation.
func (c *theCluster) applyBlueprint(ctx context.Context, replaced ...string) (generation int64, err error) {
	text := webappsYAML
	for i := 0; i < len(replaced); i += 2 {
		if !strings.Contains(text, replaced[i]) {
			return 0, fmt.Errorf("the Blueprint has no %q", replaced[i])
		}
		text = strings.Replace(text, replaced[i], replaced[i+1], 1)
	}
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &obj.Object); err != nil {
		return 0, err
	}
	// A Ctrl-C does not interrupt this, or it would not be known what there is to put away.
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	c.applied = true
	return c.apply(ctx, blueprints, obj)
}

// apply applies an object as soon as its type is there, which a new one is not for some milliseconds after it was
// established.
func (c *theCluster) apply(ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (generation int64, err error) {
	err = see(ctx, sight{"the API server takes a " + obj.GetKind(), func(ctx context.Context) error {
		now, err := c.in(gvr).Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: "demo", Force: true})
		switch {
		case err == nil:
			generation = now.GetGeneration()
			return nil
		case apierrors.IsNotFound(err), ctx.Err() != nil:
			return err
		default:
			return hopeless{err}
		}
	}})
	return generation, err
}

// write writes a WebApp.
func (c *theCluster) write(ctx context.Context, name, greeting string) (generation int64, err error) {
	return c.apply(ctx, webapps, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1",
		"kind":       "WebApp",
		"metadata":   map[string]any{"name": name},
		"spec":       map[string]any{"greeting": greeting},
	}})
}

// says: a condition of the object has the status, of the generation. What it says then is kept.
func (c *theCluster) says(gvr schema.GroupVersionResource, name, kind, status string, generation int64, message *string) sight {
	what := fmt.Sprintf("%s %s has %s=%s at generation %d", gvr.Resource, name, kind, status, generation)
	return sight{what, func(ctx context.Context) error {
		obj, err := c.in(gvr).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found := conditionOf(obj, kind)
		if found == nil || string(found.Status) != status || found.ObservedGeneration != generation {
			return fmt.Errorf("its status is %v", obj.Object["status"])
		}
		if message != nil {
			*message = found.Message
		}
		return nil
	}}
}

// ready: the WebApp is, at the generation that was written.
func (c *theCluster) ready(name string, generation int64) sight {
	return c.says(webapps, name, "Ready", "True", generation, nil)
}

func conditionOf(obj *unstructured.Unstructured, kind string) *metav1.Condition {
	var status struct {
		Conditions []metav1.Condition `json:"conditions"`
	}
	content, _ := obj.Object["status"].(map[string]any)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &status); err != nil {
		return nil
	}
	for i := range status.Conditions {
		if status.Conditions[i].Type == kind {
			return &status.Conditions[i]
		}
	}
	return nil
}

// page: the ConfigMap of the WebApp begins with the text, and is not the one with the UID.
func (c *theCluster) page(name, text, uid string) sight {
	return sight{fmt.Sprintf("the page of %s says %q", name, text), func(ctx context.Context) error {
		obj, err := c.in(configMaps).Get(ctx, name+"-page", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := pageOf(obj); !strings.HasPrefix(got, text+", from") {
			return fmt.Errorf("it says %q", got)
		}
		if string(obj.GetUID()) == uid {
			return errors.New("it is still the one that was there")
		}
		return nil
	}}
}

func pageOf(obj *unstructured.Unstructured) string {
	text, _, _ := unstructured.NestedString(obj.Object, "data", "index.html")
	return text
}

// gone: there is no such object.
func (c *theCluster) gone(gvr schema.GroupVersionResource, name string) sight {
	return sight{fmt.Sprintf("%s %s is gone", gvr.Resource, name), func(ctx context.Context) error {
		_, err := c.in(gvr).Get(ctx, name, metav1.GetOptions{})
		return isGone(err)
	}}
}

// typeGone: the type with the CustomResourceDefinition is.
func (c *theCluster) typeGone(name string) sight {
	return sight{name + " is gone", func(ctx context.Context) error {
		_, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, name, metav1.GetOptions{})
		return isGone(err)
	}}
}

func isGone(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil:
		return errors.New("it is still there")
	default:
		return err
	}
}
