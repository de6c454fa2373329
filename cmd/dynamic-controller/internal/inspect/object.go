package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	eventsapi "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/explain"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/handlers/children"
)

const (
	// maxDepth is the number of levels of nested instances that are read.
	maxDepth = 8
	// maxObjects is the number of objects that are read for one inspection.
	maxObjects = 1000
	// pageSize is the maximum number of objects in a page of a list.
	pageSize = 500
	// maxWithEvents is the maximum number of unready children whose events are read.
	maxWithEvents = 5
)

// Options select what is read.
type Options struct {
	// Events are read for the object and for a few of its children that are not ready.
	Events bool
}

// Get reads a Blueprint or an instance. The type is resolved as kubectl does. If the API server does not serve the
// type, but a Blueprint defines it, the result is the Blueprint.
func (c *Client) Get(ctx context.Context, typeName, name, namespace string, options Options) (*explain.Object, error) {
	mapping, err := c.mappingFor(ctx, typeName)
	if errors.Is(err, ErrUnknownType) {
		b := c.blueprintDefining(ctx, typeName)
		if b == nil {
			return nil, err
		}
		return c.inspect(ctx, blueprint.GroupVersionResource, b, options)
	}
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		namespace = ""
	}
	gvr := mapping.Resource
	if isSecret(gvr.GroupResource()) {
		return nil, notInstance(gvr.GroupResource(), nil, nil)
	}
	object, err := c.dynamic.Resource(gvr).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w\nask for a Role with the verbs [get, list] on the resource %s", err, gvr.GroupResource())
	case apierrors.IsNotFound(err) && namespace != "":
		return nil, fmt.Errorf("%w in namespace %s: -n selects another namespace", err, namespace)
	case err != nil:
		return nil, err
	}
	return c.inspect(ctx, gvr, object, options)
}

func (c *Client) inspect(
	ctx context.Context, gvr schema.GroupVersionResource, object *unstructured.Unstructured, options Options,
) (*explain.Object, error) {
	r := &reading{Client: c, left: maxObjects}
	o := &explain.Object{Unstructured: object, Resource: gvr.GroupResource()}
	if options.Events {
		r.readEvents(ctx, o) // first, because reading the children can exhaust the request limit
	}
	if o.IsBlueprint() {
		r.readInstances(ctx, o)
	} else {
		if o.Owner = c.ownerOf(ctx, gvr, object); o.Owner == nil {
			return nil, notInstance(gvr.GroupResource(), object, c.ownerOfType(ctx, gvr))
		}
		r.readChildren(ctx, o, maxDepth)
	}
	if options.Events {
		r.withEvents = maxWithEvents
		for _, child := range o.Children {
			r.readEventsOfUnready(ctx, child)
		}
	}
	return o, nil
}

// notInstance returns an error for an object that is neither a Blueprint nor an instance. The owner is nil, or unknown.
func notInstance(resource schema.GroupResource, object *unstructured.Unstructured, owner *explain.Owner) error {
	if object != nil {
		if kind, key := instances.InstanceOf(object); key != "" {
			namespace, name, has := strings.Cut(key, "/")
			if !has {
				return fmt.Errorf("%s is a child of %s %s: use that object instead", object.GetName(), kind, key)
			}
			return fmt.Errorf("%s is a child of %s %s in namespace %s: use that object instead", object.GetName(), kind, name,
				namespace)
		}
	}
	if owner != nil {
		return fmt.Errorf("cannot find out whether %s is the type of a Blueprint: %s\n"+
			"ask for a ClusterRole with the verb get on customresourcedefinitions", resource, owner.Unread)
	}
	return fmt.Errorf("%s is not the type of a Blueprint: give a Blueprint or an instance, as blueprint/NAME or TYPE/NAME",
		resource)
}

// reading counts the objects that one inspection reads.
type reading struct {
	*Client
	left, withEvents int
	full             bool // no more objects are read
	stopped          bool // no more requests are sent
}

// spend counts a request about an object and reports whether the request can be sent. When a limit is reached, it adds
// a message to o.Unread, once per inspection.
func (r *reading) spend(ctx context.Context, o *explain.Object) bool {
	if r.stopped {
		return false
	}
	if err := r.Client.spend(ctx); err != nil {
		r.stopped = true
		o.Unread = append(o.Unread, fmt.Sprintf("more objects: not read: %v", err))
	}
	return !r.stopped
}

// readInstances reads the instances of a Blueprint.
func (r *reading) readInstances(ctx context.Context, o *explain.Object) {
	b, err := blueprint.FromUnstructured(o.Unstructured)
	if err != nil {
		return
	}
	resource := schema.ParseGroupResource(blueprint.DefinitionName(b))
	gvr, err := r.mapper.ResourceForWithContext(ctx, resource.WithVersion(""))
	if err != nil {
		return // the type is not served
	}
	switch of := r.ownerOfType(ctx, gvr); {
	case isUnknown(of) && b.Status.Served != nil: // only one Blueprint of a type is served
	case of == nil || of.Name != b.Name:
		return // the type belongs to another Blueprint
	}
	owner := &explain.Owner{Name: b.Name, Blueprint: o.Unstructured}
	for _, item := range r.list(ctx, o, gvr, metav1.NamespaceAll, metav1.ListOptions{}) {
		o.Children = append(o.Children, &explain.Object{Unstructured: item, Resource: gvr.GroupResource(), Owner: owner})
	}
}

// readChildren reads the children of an instance, and those of nested instances.
func (r *reading) readChildren(ctx context.Context, o *explain.Object, levels int) {
	for _, kind := range instances.RecordedKinds(o) {
		if r.full || r.stopped {
			return
		}
		mapping, err := r.mappingOf(ctx, kind)
		if err != nil {
			o.Unread = append(o.Unread, fmt.Sprintf("children of kind %s: %v", kind.GroupKind, err))
			continue
		}
		for _, namespace := range scopes(o, mapping, kind) {
			r.readChildrenIn(ctx, o, mapping.Resource, namespace, levels)
		}
	}
}

// mappingOf returns the type of an entry of an inventory. Its version is the recorded one if the API server serves it.
func (r *reading) mappingOf(ctx context.Context, kind children.RecordedKind) (*meta.RESTMapping, error) {
	mapping, err := r.mapper.RESTMappingWithContext(ctx, kind.GroupKind, kind.GVR.Version)
	if !meta.IsNoMatchError(err) {
		return mapping, err
	}
	return r.mapper.RESTMappingWithContext(ctx, kind.GroupKind)
}

// readChildrenIn reads the children of a type in a namespace.
func (r *reading) readChildrenIn(
	ctx context.Context, o *explain.Object, gvr schema.GroupVersionResource, namespace string, levels int,
) {
	options := metav1.ListOptions{LabelSelector: instances.ChildSelector(o.Unstructured).String()}
	for _, item := range r.list(ctx, o, gvr, namespace, options) {
		if !instances.IsMarked(item, o.Unstructured) {
			continue
		}
		child := &explain.Object{Unstructured: item, Resource: gvr.GroupResource(), Owner: r.ownerOf(ctx, gvr, item)}
		o.Children = append(o.Children, child)
		switch {
		case child.Owner == nil:
		case levels > 0:
			r.readChildren(ctx, child, levels-1)
		case len(instances.RecordedKinds(child)) > 0:
			child.Unread = append(child.Unread, fmt.Sprintf("children: not read, because only %d levels are read", maxDepth))
		}
	}
}

// scopes returns the namespaces that can contain children of a kind. The namespace is empty for cluster-scoped kinds.
func scopes(o *explain.Object, mapping *meta.RESTMapping, kind children.RecordedKind) []string {
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return []string{""}
	}
	namespaces := slices.Clone(kind.Namespaces)
	if namespace := o.GetNamespace(); namespace != "" && !slices.Contains(namespaces, namespace) {
		namespaces = append(namespaces, namespace)
	}
	return namespaces
}

func isSecret(resource schema.GroupResource) bool {
	return resource == schema.GroupResource{Resource: "secrets"}
}

// list lists objects. It adds a message to o.Unread if they cannot be read.
func (r *reading) list(
	ctx context.Context, o *explain.Object, gvr schema.GroupVersionResource, namespace string, options metav1.ListOptions,
) (items []*unstructured.Unstructured) {
	where := gvr.GroupResource().String()
	if namespace != "" {
		where += " in namespace " + namespace
	}
	for {
		if r.left <= 0 && !r.full {
			r.full = true
			o.Unread = append(o.Unread, fmt.Sprintf("more objects: not read, because at most %d are read", maxObjects))
		}
		if r.full || !r.spend(ctx, o) {
			return items
		}
		options.Limit = int64(min(pageSize, r.left))
		page, more, err := r.page(ctx, gvr, namespace, options)
		if apierrors.IsForbidden(err) {
			o.Unread = append(o.Unread, where+": forbidden. To see them, ask for a Role with the verb list")
		} else if err != nil {
			o.Unread = append(o.Unread, fmt.Sprintf("%s: %v", where, err))
		}
		items, r.left = append(items, page...), r.left-len(page)
		if options.Continue = more; err != nil || more == "" {
			return items
		}
	}
}

// page reads one page of a list. It reads only the metadata of Secrets.
func (r *reading) page(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, options metav1.ListOptions,
) (items []*unstructured.Unstructured, more string, err error) {
	if isSecret(gvr.GroupResource()) {
		return r.listMetadata(ctx, gvr, namespace, options)
	}
	list, err := r.dynamic.Resource(gvr).Namespace(namespace).List(ctx, options)
	if err != nil {
		return nil, "", err
	}
	for i := range list.Items {
		items = append(items, &list.Items[i])
	}
	return items, list.GetContinue(), nil
}

// listMetadata lists objects without their content.
func (r *reading) listMetadata(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, options metav1.ListOptions,
) (items []*unstructured.Unstructured, more string, err error) {
	list, err := r.metadata.Resource(gvr).Namespace(namespace).List(ctx, options)
	if err != nil {
		return nil, "", err
	}
	for _, item := range list.Items {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&item)
		if err != nil {
			return nil, "", err
		}
		object := &unstructured.Unstructured{Object: content}
		object.SetGroupVersionKind(gvr.GroupVersion().WithKind("Secret"))
		items = append(items, object)
	}
	return items, list.Continue, nil
}

func (r *reading) readEventsOfUnready(ctx context.Context, o *explain.Object) {
	if state, _ := o.State(); state == explain.Ready || r.withEvents == 0 {
		return
	}
	r.withEvents--
	r.readEvents(ctx, o)
	for _, child := range o.Children {
		r.readEventsOfUnready(ctx, child)
	}
}

// readEvents reads the events about an object. Those of cluster-scoped objects are in the namespace default.
func (r *reading) readEvents(ctx context.Context, o *explain.Object) {
	if !r.spend(ctx, o) {
		return
	}
	namespace := o.GetNamespace()
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	list, err := r.events.Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "regarding.uid=" + string(o.GetUID()), Limit: pageSize,
	})
	if err != nil {
		problem := fmt.Sprintf("events in namespace %s: %v", namespace, err)
		if apierrors.IsForbidden(err) {
			problem = fmt.Sprintf("events in namespace %s: forbidden. To see them, ask for a Role with the verb list on "+
				"events.events.k8s.io", namespace)
		}
		if !slices.Contains(o.Unread, problem) {
			o.Unread = append(o.Unread, problem)
		}
		return
	}
	o.Events = slices.SortedStableFunc(slices.Values(list.Items), func(a, b eventsapi.Event) int {
		return explain.TimeOf(a).Compare(explain.TimeOf(b))
	})
}
