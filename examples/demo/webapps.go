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

// in returns the client for objects of a type. Blueprints are cluster-scoped; the other types are used in the namespace
// default.
func (c *demoCluster) in(gvr schema.GroupVersionResource) dynamic.ResourceInterface {
	if gvr == blueprints {
		return c.dynamic.Resource(gvr)
	}
	return c.dynamic.Resource(gvr).Namespace(metav1.NamespaceDefault)
}

// applyBlueprint applies the Blueprint and returns its generation. replaced contains pairs of strings: a text in the
// manifest and its replacement.
func (c *demoCluster) applyBlueprint(ctx context.Context, replaced ...string) (generation int64, err error) {
	text := webappsYAML
	for i := 0; i < len(replaced); i += 2 {
		if !strings.Contains(text, replaced[i]) {
			return 0, fmt.Errorf("the Blueprint does not contain %q", replaced[i])
		}
		text = strings.Replace(text, replaced[i], replaced[i+1], 1)
	}
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &obj.Object); err != nil {
		return 0, err
	}
	// Ctrl-C does not interrupt the request. Otherwise, the Blueprint could be created after close has looked for it.
	const timeout = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	c.applied = true
	return c.apply(ctx, blueprints, obj)
}

// apply applies an object and returns its generation. It retries until the API server serves the type, which can take a
// few milliseconds after the type is established.
func (c *demoCluster) apply(
	ctx context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured,
) (generation int64, err error) {
	err = waitFor(ctx, condition{"the API server accepts a " + obj.GetKind(), func(ctx context.Context) error {
		now, err := c.in(gvr).Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: "demo", Force: true})
		switch {
		case err == nil:
			generation = now.GetGeneration()
			return nil
		case apierrors.IsNotFound(err), ctx.Err() != nil:
			return err
		default:
			return permanentError{err}
		}
	}})
	return generation, err
}

// write applies a WebApp and returns its generation.
func (c *demoCluster) write(ctx context.Context, name, greeting string) (generation int64, err error) {
	return c.apply(ctx, webapps, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1",
		"kind":       "WebApp",
		"metadata":   map[string]any{"name": name},
		"spec":       map[string]any{"greeting": greeting},
	}})
}

// hasCondition returns a condition that is true if the object's status condition of the given kind has the given status
// and observed generation. If message is not nil, the message of the status condition is stored in it.
func (c *demoCluster) hasCondition(
	gvr schema.GroupVersionResource, name, kind, status string, generation int64, message *string,
) condition {
	what := fmt.Sprintf("%s %s has %s=%s at generation %d", gvr.Resource, name, kind, status, generation)
	return condition{what, func(ctx context.Context) error {
		obj, err := c.in(gvr).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found := conditionOf(obj, kind)
		if found == nil || string(found.Status) != status || found.ObservedGeneration != generation {
			return fmt.Errorf("the status is %v", obj.Object["status"])
		}
		if message != nil {
			*message = found.Message
		}
		return nil
	}}
}

// ready returns a condition that is true if the WebApp is ready at the generation.
func (c *demoCluster) ready(name string, generation int64) condition {
	return c.hasCondition(webapps, name, "Ready", "True", generation, nil)
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

// page returns a condition that is true if the WebApp's page begins with the text, and the UID of the page's ConfigMap
// differs from the given one.
func (c *demoCluster) page(name, text, uid string) condition {
	return condition{fmt.Sprintf("the page of %s has the text %q", name, text), func(ctx context.Context) error {
		obj, err := c.in(configMaps).Get(ctx, name+"-page", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := pageOf(obj); !strings.HasPrefix(got, text+", from") {
			return fmt.Errorf("the text is %q", got)
		}
		if string(obj.GetUID()) == uid {
			return errors.New("the ConfigMap was not replaced")
		}
		return nil
	}}
}

func pageOf(obj *unstructured.Unstructured) string {
	text, _, _ := unstructured.NestedString(obj.Object, "data", "index.html")
	return text
}

// deleted returns a condition that is true if the object does not exist.
func (c *demoCluster) deleted(gvr schema.GroupVersionResource, name string) condition {
	return condition{fmt.Sprintf("%s %s is deleted", gvr.Resource, name), func(ctx context.Context) error {
		_, err := c.in(gvr).Get(ctx, name, metav1.GetOptions{})
		return notFound(err)
	}}
}

// typeDeleted returns a condition that is true if the CustomResourceDefinition does not exist.
func (c *demoCluster) typeDeleted(name string) condition {
	return condition{name + " is deleted", func(ctx context.Context) error {
		_, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, name, metav1.GetOptions{})
		return notFound(err)
	}}
}

// notFound returns nil if a get request failed with NotFound, and an error otherwise.
func notFound(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil:
		return errors.New("the object exists")
	default:
		return err
	}
}
