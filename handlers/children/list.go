package children

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/children/internal/inventory"
	"github.com/dynamic-controller/engine/handlers/internal/live"
)

// listKind returns the parent's children of a kind, and the resource of the kind. If cached is set, it is the mapping
// of the kind, and the children are read from the cache. Otherwise, they are read from the API server. The children are
// not listed as Desired.As because permissions for a list cannot be limited to the children.
//
// The mapper can lag behind. It also lacks the kinds of a group whose discovery has failed since the process started.
// If it has no mapping for the kind, listKind uses the resource in the inventory. If the API server does not serve that
// resource, the children no longer exist, unless the discovery of the group fails: the API server can then serve the
// kind in another version, so listKind returns the error from the mapper. If the list cannot contain all children of
// the kind, the error wraps ErrNamespaceNotListed. If the mark of a child cannot be read, the error wraps
// ErrNewerFormat, and the other children are returned as well.
func (o *observer) listKind(
	ctx context.Context, entry inventory.Entry, cached *meta.RESTMapping,
) (schema.GroupVersionResource, []*unstructured.Unstructured, error) {
	mapping, undiscovered := cached, error(nil)
	if cached == nil {
		var err error
		if mapping, err = o.mappingOf(entry); isUndiscovered(err) {
			undiscovered = err
		} else if err != nil {
			return entry.GVR(), nil, err
		}
	}
	gvr := entry.GVR()
	if mapping != nil {
		gvr = mapping.Resource
	}
	namespace, crossNamespace := o.parent.GetNamespace(), o.canCrossNamespaces(entry.Kind)
	switch {
	case crossNamespace:
		namespace = ""
	case namespace != "" && mapping != nil && isClusterScoped(mapping):
		return gvr, nil, nil
	}
	acrossNamespaces := namespace == "" && (mapping == nil || !isClusterScoped(mapping))
	var own []*unstructured.Unstructured
	var newer error
	keep := o.keepChildren(ctx, entry, &own, &newer)
	err := error(dynamiccontroller.ErrNotServed)
	switch {
	case cached == nil:
	case o.config.Cache != nil:
		err = o.listCached(gvr, namespace, crossNamespace, keep)
	}
	if isUncached(err) {
		err = o.listLive(ctx, gvr, namespace, acrossNamespaces, keep)
	}
	switch {
	case undiscovered != nil && apierrors.IsNotFound(err):
		return gvr, nil, undiscovered // does not count as a type that is not served
	case mapping == nil && apierrors.IsNotFound(err):
		return gvr, nil, nil
	case err != nil:
		return gvr, nil, err
	case acrossNamespaces:
		err = o.checkListed(entry)
	}
	return gvr, own, cmp.Or(err, newer)
}

// maxIgnored limits how many objects are logged.
const maxIgnored = 100

// keepChildren returns a function that appends objects to own if they are children of the parent. Only their metadata
// is used. The function sets newer to the error for the first child whose mark has an unknown format.
func (o *observer) keepChildren(
	ctx context.Context, entry inventory.Entry, own *[]*unstructured.Unstructured, newer *error,
) func(*unstructured.Unstructured) error {
	return func(object *unstructured.Unstructured) error {
		switch isChild, err := decide.IsChild(o.rules, object, o.namespaceUID); {
		case errors.Is(err, ErrNewerFormat):
			if entry.Covers(o.parent, object.GetNamespace()) {
				*newer = cmp.Or(*newer, fmt.Errorf("%s: %w", cache.MetaObjectToName(object), err))
			}
			return nil
		case err != nil || !isChild:
			return err
		case !entry.Covers(o.parent, object.GetNamespace()):
			if len(o.ignored) < maxIgnored {
				o.ignored = append(o.ignored, entry.Kind.Kind+" "+cache.MetaObjectToName(object).String())
			}
			return nil
		}
		*own = append(*own, object)
		if o.config.Reserve == nil || o.isPlan {
			return nil
		}
		return o.config.Reserve(ctx, object)
	}
}

// mappingOf returns the mapping of a kind, or nil if the kind is unknown.
func (o *observer) mappingOf(entry inventory.Entry) (*meta.RESTMapping, error) {
	mapping, err := o.config.Mapper.RESTMapping(entry.Kind)
	switch {
	case meta.IsNoMatchError(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find the resource: %w", err)
	}
	return mapping, nil
}

// checkListed returns an error if children of the kind can be in namespaces that are not in Config.Namespaces.
func (o *observer) checkListed(entry inventory.Entry) error {
	if len(o.config.Namespaces) == 0 || len(entry.Namespaces) == 0 {
		return nil
	}
	listed := sets.New(o.config.Namespaces...)
	for _, namespace := range entry.Namespaces {
		if !listed.Has(namespace) {
			return fmt.Errorf("namespace %s: %w", namespace, ErrNamespaceNotListed)
		}
	}
	return nil
}

// listLive calls f for the children that the API server returns. A list across namespaces is restricted to
// Config.Namespaces.
func (o *observer) listLive(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, acrossNamespaces bool,
	f func(*unstructured.Unstructured) error,
) error {
	namespaces := []string{namespace}
	if acrossNamespaces && len(o.config.Namespaces) > 0 {
		namespaces = o.config.Namespaces
	}
	for _, namespace := range namespaces {
		if err := checkRoute(gvr, acrossNamespaces); namespace == "" && err != nil {
			return err
		}
		if err := live.Each(ctx, o.config.Client, gvr, namespace, o.rules.Selector(), f); err != nil {
			return err
		}
	}
	return nil
}

// canCrossNamespaces reports whether children of a kind can be outside the namespace of a namespaced parent. This
// requires CrossNamespace for the kind in Config.Kinds. The parent must also have the finalizer, which is added before
// the first such child is written.
func (o *observer) canCrossNamespaces(kind schema.GroupKind) bool {
	return o.kinds[kind] && o.parent.GetNamespace() != "" && slices.Contains(o.parent.GetFinalizers(), o.names.Finalizer())
}

// listCached calls f with the metadata of the children in Config.Cache. It is sufficient to delete them.
func (o *observer) listCached(
	gvr schema.GroupVersionResource, namespace string, crossNamespace bool, f func(*unstructured.Unstructured) error,
) error {
	lister, err := o.config.Cache.Lister(gvr)
	if err != nil {
		return err
	}
	var objects []dynamiccontroller.Object
	owned, hasIndex := lister.(dynamiccontroller.SecondaryLister)
	if hasIndex && !crossNamespace {
		objects, err = owned.OwnedBy(o.parent.GetUID())
	} else {
		objects, err = lister.Objects(namespace, o.rules.Selector())
	}
	for i, object := range objects {
		objects[i] = nil // holds its decoded metadata
		if err := f(metadataOf(object)); err != nil {
			return err
		}
	}
	return err
}

func metadataOf(object dynamiccontroller.Object) *unstructured.Unstructured {
	metadata := &unstructured.Unstructured{Object: map[string]any{}}
	metadata.SetNamespace(object.GetNamespace())
	metadata.SetName(object.GetName())
	metadata.SetUID(object.GetUID())
	metadata.SetResourceVersion(object.GetResourceVersion())
	metadata.SetDeletionTimestamp(object.GetDeletionTimestamp())
	metadata.SetDeletionGracePeriodSeconds(object.GetDeletionGracePeriodSeconds())
	metadata.SetLabels(object.GetLabels())
	metadata.SetAnnotations(object.GetAnnotations())
	metadata.SetFinalizers(object.GetFinalizers())
	metadata.SetOwnerReferences(object.GetOwnerReferences())
	return metadata
}
