package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// group is that of the types that the demonstration defines.
const group = "demo.example.com"

//go:embed widgets.yaml
var widgetsYAML []byte

//go:embed gadgets.yaml
var gadgetsYAML []byte

// definedType is a type of the demonstration.
type definedType struct {
	*apiextensionsv1.CustomResourceDefinition
}

func typeOf(manifest []byte) (definedType, error) {
	t := definedType{&apiextensionsv1.CustomResourceDefinition{}}
	return t, yaml.UnmarshalStrict(manifest, t.CustomResourceDefinition)
}

func (t definedType) name() string   { return t.Name }
func (t definedType) plural() string { return t.Spec.Names.Plural }

// define creates the type, with the label or without.
func (t definedType) define(ctx context.Context, c *theCluster, labelled bool) error {
	crd := t.DeepCopy()
	if !labelled {
		delete(crd.Labels, label)
	}
	// A Ctrl-C does not interrupt this, or it would not be known what there is to put away.
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, crd, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		c.defined = append(c.defined, t)
	}
	return err
}

// relabel puts the label on the type, or takes it off.
func (t definedType) relabel(ctx context.Context, c *theCluster, labelled bool) error {
	value := "null"
	if labelled {
		value = `"true"`
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, label, value)
	_, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Patch(ctx, t.name(), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (t definedType) delete(ctx context.Context, c *theCluster) error {
	return c.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(ctx, t.name(), metav1.DeleteOptions{})
}

func (t definedType) objects(c *theCluster) dynamic.ResourceInterface {
	r := c.dynamic.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: t.plural()})
	if t.Spec.Scope == apiextensionsv1.NamespaceScoped {
		return r.Namespace(metav1.NamespaceDefault)
	}
	return r
}

// write writes an object, as kubectl apply does, and returns its generation.
func (t definedType) write(ctx context.Context, c *theCluster, name string, size int64) (generation int64, err error) {
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1",
		"kind":       t.Spec.Names.Kind,
		"metadata":   map[string]any{"name": name},
		"spec":       map[string]any{"size": size},
	}}
	err = see(ctx, sight{"the API server takes a " + t.Spec.Names.Singular, func(ctx context.Context) error {
		obj, err := t.objects(c).Apply(ctx, name, obj, metav1.ApplyOptions{FieldManager: "demo", Force: true})
		switch {
		case err == nil:
			generation = obj.GetGeneration()
			return nil
		case apierrors.IsNotFound(err):
			return err // as a new type is for some milliseconds
		default:
			return hopeless{err}
		}
	}})
	return generation, err
}

// reconciled: the object's status at the API server says that this generation was reconciled and that it is Ready.
func (t definedType) reconciled(c *theCluster, name string, generation int64) sight {
	what := fmt.Sprintf("%s %s is Ready at generation %d", t.Spec.Names.Singular, name, generation)
	return sight{what, func(ctx context.Context) error {
		obj, err := t.objects(c).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if observed, ready := statusOf(obj); observed != generation || !ready {
			return fmt.Errorf("its status is %v", obj.Object["status"])
		}
		return nil
	}}
}

// leftAlone is an error if the object's status is at its generation, or not at the one at which it was left.
func (t definedType) leftAlone(ctx context.Context, c *theCluster, name string, left int64) error {
	obj, err := t.objects(c).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if observed, _ := statusOf(obj); observed != left || obj.GetGeneration() == left {
		return fmt.Errorf("%s %s should have been left alone at generation %d, but at generation %d its status is %v",
			t.Spec.Names.Singular, name, left, obj.GetGeneration(), obj.Object["status"])
	}
	return nil
}

// statusOf reads what the platform writes.
func statusOf(obj *unstructured.Unstructured) (observed int64, ready bool) {
	observed, _, _ = unstructured.NestedInt64(obj.Object, "status", "observedGeneration")
	conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, condition := range conditions {
		c, _ := condition.(map[string]any)
		if c["type"] == "Ready" {
			ready = c["status"] == "True" && c["observedGeneration"] == observed
		}
	}
	return observed, ready
}

// established: the API server has made the type its own.
func (t definedType) established(c *theCluster) sight {
	return sight{t.name() + " is established", func(ctx context.Context) error {
		crd, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, t.name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range crd.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("its status is %+v", crd.Status.Conditions)
	}}
}

// gone: the API server has deleted the type with all its objects.
func (t definedType) gone(c *theCluster) sight {
	return sight{t.name() + " is gone", func(ctx context.Context) error {
		_, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, t.name(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err == nil:
			return errors.New("it is still there")
		default:
			return err
		}
	}}
}

// sight is something to be seen at the API server.
type sight struct {
	what  string
	check func(context.Context) error // nil when it is seen
}

// hopeless is a reason not to look again.
type hopeless struct{ error }

// see looks until it sees.
func see(ctx context.Context, s sight) error {
	const (
		patience = 15 * time.Second
		pause    = 2 * time.Millisecond
	)
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("gave up after %s", patience))
	defer cancel()
	last := errors.New("there was none")
	for {
		err := s.check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if errors.As(err, &hopeless{}) {
			return fmt.Errorf("%s: %w", s.what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not seen: %s (%w; the last look: %w)", s.what, context.Cause(ctx), last)
		case <-time.After(pause):
		}
	}
}
