package controllertest

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/internal/writes"
)

// Resource implements dynamic.Interface.
func (s *Server) Resource(gvr schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return client{server: s, gvr: gvr}
}

// client is a client for the objects of a type, in one namespace or in all namespaces. Like client-go's fake clients,
// it passes each request to the reactors. Unlike them, it returns an error if the context is cancelled.
type client struct {
	server    *Server
	gvr       schema.GroupVersionResource
	namespace string
}

// checkName returns the error of a client for the name of an object.
func checkName(name string) error {
	if name == "" {
		return errors.New("name is required")
	}
	if msgs := rest.IsValidPathSegmentName(name); len(msgs) > 0 {
		return fmt.Errorf("invalid resource name %q: %v", name, msgs)
	}
	return nil
}

func (c client) Namespace(namespace string) dynamic.ResourceInterface {
	c.namespace = namespace
	return c
}

func (c client) Create(
	ctx context.Context, object *unstructured.Unstructured, opts metav1.CreateOptions, subresources ...string,
) (*unstructured.Unstructured, error) {
	object, err := sent(object)
	if err != nil {
		return nil, err
	}
	action := clienttesting.NewCreateActionWithOptions(c.gvr, c.namespace, object, opts)
	action.Name, action.Subresource = object.GetName(), join(subresources)
	return c.invoke(ctx, action)
}

func (c client) Update(
	ctx context.Context, object *unstructured.Unstructured, opts metav1.UpdateOptions, subresources ...string,
) (*unstructured.Unstructured, error) {
	object, err := sent(object)
	if err != nil {
		return nil, err
	}
	if err := checkName(object.GetName()); err != nil {
		return nil, err
	}
	action := clienttesting.NewUpdateActionWithOptions(c.gvr, c.namespace, object, opts)
	action.Subresource = join(subresources)
	return c.invoke(ctx, action)
}

func (c client) UpdateStatus(
	ctx context.Context, object *unstructured.Unstructured, opts metav1.UpdateOptions,
) (*unstructured.Unstructured, error) {
	return c.Update(ctx, object, opts, "status")
}

func (c client) Delete(ctx context.Context, name string, opts metav1.DeleteOptions, subresources ...string) error {
	if err := checkName(name); err != nil {
		return err
	}
	action := clienttesting.NewDeleteActionWithOptions(c.gvr, c.namespace, name, opts)
	action.Subresource = join(subresources)
	before := c.stored(name)
	_, err := c.invoke(ctx, action)
	if err == nil && before != nil && !isDryRun(action) {
		c.record(ctx, before, true)
	}
	return err
}

// stored returns an object of the server, or nil.
func (c client) stored(name string) *unstructured.Unstructured {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if table := c.server.tables[c.gvr]; table != nil {
		return table.objects[types.NamespacedName{Namespace: c.namespace, Name: name}]
	}
	return nil
}

func (c client) DeleteCollection(ctx context.Context, opts metav1.DeleteOptions, list metav1.ListOptions) error {
	if _, err := matcher(c.namespace, list); err != nil {
		return err
	}
	_, err := c.invoke(ctx, clienttesting.NewDeleteCollectionActionWithOptions(c.gvr, c.namespace, opts, list))
	return err
}

func (c client) Get(
	ctx context.Context, name string, opts metav1.GetOptions, subresources ...string,
) (*unstructured.Unstructured, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	action := clienttesting.NewGetActionWithOptions(c.gvr, c.namespace, name, opts)
	action.Subresource = join(subresources)
	return c.invoke(ctx, action)
}

func (c client) List(ctx context.Context, opts metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if _, err := matcher(c.namespace, opts); err != nil {
		return nil, err // NewListActionWithOptions would panic
	}
	action := clienttesting.NewListActionWithOptions(c.gvr, schema.GroupVersionKind{}, c.namespace, opts)
	result, err := c.server.fake.Invokes(action, nil)
	if err != nil {
		return nil, err
	}
	list, ok := result.(*unstructured.UnstructuredList)
	if !ok {
		return nil, fmt.Errorf("controllertest: a reactor returned a %T, expected an UnstructuredList", result)
	}
	return list, nil
}

func (c client) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, opts, func(object *unstructured.Unstructured) runtime.Object { return object })
}

// watch starts a watch that delivers the results of convert. The watch ends when ctx is cancelled.
func (c client) watch(
	ctx context.Context, opts metav1.ListOptions, convert func(*unstructured.Unstructured) runtime.Object,
) (watch.Interface, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if _, err := matcher(c.namespace, opts); err != nil {
		return nil, err
	}
	opts.Watch = true
	action := clienttesting.NewWatchActionWithOptions(c.gvr, c.namespace, opts)
	if _, err := c.server.fake.Invokes(action, nil); err != nil {
		return nil, err
	}
	return c.server.watch(ctx, action, convert)
}

func (c client) Patch(
	ctx context.Context, name string, patchType types.PatchType, data []byte, opts metav1.PatchOptions,
	subresources ...string,
) (*unstructured.Unstructured, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	action := clienttesting.NewPatchActionWithOptions(c.gvr, c.namespace, name, patchType, data, opts)
	action.Subresource = join(subresources)
	return c.invoke(ctx, action)
}

func (c client) Apply(
	ctx context.Context, name string, object *unstructured.Unstructured, opts metav1.ApplyOptions, subresources ...string,
) (*unstructured.Unstructured, error) {
	if len(object.GetManagedFields()) > 0 {
		return nil, errors.New("cannot apply an object with managed fields already set")
	}
	data, err := json.Marshal(object.Object)
	if err != nil {
		return nil, err
	}
	patch := metav1.PatchOptions{Force: ptr.To(opts.Force), DryRun: opts.DryRun, FieldManager: opts.FieldManager}
	return c.Patch(ctx, name, types.ApplyPatchType, data, patch, subresources...)
}

func (c client) ApplyStatus(
	ctx context.Context, name string, object *unstructured.Unstructured, opts metav1.ApplyOptions,
) (*unstructured.Unstructured, error) {
	return c.Apply(ctx, name, object, opts, "status")
}

// invoke passes a request to the reactors. The caller owns the returned object.
func (c client) invoke(ctx context.Context, action clienttesting.Action) (*unstructured.Unstructured, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	result, err := c.server.fake.Invokes(action, nil)
	if err != nil && !isRefusal(err) && !isDryRun(action) {
		writes.RecordUnknown(ctx, writes.Target{
			Resource: c.gvr.GroupResource(), Namespace: c.namespace, Name: written(action),
		})
	}
	if err != nil || result == nil {
		return nil, err
	}
	if object, ok := result.(*unstructured.Unstructured); ok {
		if _, read := action.(clienttesting.GetActionImpl); !read && !isDryRun(action) {
			c.record(ctx, object, false)
		}
		return object, nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(result)
	return &unstructured.Unstructured{Object: content}, err
}

// isRefusal reports whether an error means that the request was not executed.
func isRefusal(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError
}

// written returns the name of the object that a request writes. It is empty for reads, for collections and for
// generated names.
func written(action clienttesting.Action) string {
	var object runtime.Object
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		object = action.Object
	case clienttesting.UpdateActionImpl:
		object = action.Object
	case clienttesting.PatchActionImpl:
		return action.Name
	case clienttesting.DeleteActionImpl:
		return action.Name
	}
	if m, err := meta.Accessor(object); err == nil {
		return m.GetName()
	}
	return ""
}

// record records a write for the handler call to which ctx belongs, as the transports of real clients do. Objects that
// only a reactor knows are not recorded.
func (c client) record(ctx context.Context, object *unstructured.Unstructured, isDelete bool) {
	w := writes.Write{
		Resource: c.gvr.GroupResource(), Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(),
		States: []writes.State{{Version: object.GetResourceVersion(), Labels: object.GetLabels()}},
	}
	now := c.stored(w.Name)
	exists := now != nil && now.GetUID() == w.UID
	switch {
	case exists && isDelete:
		w.States[0].Version = now.GetResourceVersion()
	case !exists && (isDelete || object.GetDeletionTimestamp() != nil):
		w.Gone = true
	case !exists:
		return
	}
	writes.Record(ctx, w)
}

// sent returns an object as an API server receives it.
func sent(object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(object.Object)
	if err != nil {
		return nil, err
	}
	return received(data)
}

func received(data []byte) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(data, &object.Object); err != nil {
		return nil, err
	}
	return object, nil
}

func join(subresources []string) string {
	if len(subresources) == 0 {
		return ""
	}
	return subresources[0]
}
