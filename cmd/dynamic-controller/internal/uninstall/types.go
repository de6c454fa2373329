package uninstall

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/pager"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// typeInfo describes a type whose instances the platform has served.
type typeInfo struct {
	name       string // of the CustomResourceDefinition
	gvr        schema.GroupVersionResource
	uid        types.UID
	namespaced bool
	// owned reports whether the platform created the type for a Blueprint. Types that were retained are not owned.
	owned bool
	// orphaned reports whether the type was created for a Blueprint that neither exists nor has accepted specs here. The
	// Blueprint can belong to a platform in another namespace, or to a cluster from which the type was restored. An
	// orphaned type is never deleted.
	orphaned bool
	// unlisted reports whether the instances cannot be listed. The type is then not deleted.
	unlisted bool
}

// pageSize is the number of CustomResourceDefinitions or Blueprints to read at once. They can be large.
const pageSize = 50

// eachPage calls f for each object of a paginated list. If the list changes so much that it cannot be continued, it
// returns an error, instead of reading everything at once.
func eachPage(ctx context.Context, list pager.ListPageFunc, size int64, f func(runtime.Object) error) error {
	p := pager.New(list)
	p.PageSize, p.PageBufferSize, p.FullListIfExpired = size, 1, false
	return p.EachListItem(ctx, metav1.ListOptions{}, f)
}

// findTypes finds the types that the platform created or serves: all types that Blueprints define or name, and all
// types with the annotations of a Blueprint.
func (u *uninstaller) findTypes(ctx context.Context) error {
	named, known := sets.New[string](), sets.New[string]()
	err := u.eachBlueprint(ctx, func(object *unstructured.Unstructured) error {
		known.Insert(string(object.GetUID()))
		b, err := blueprint.FromUnstructured(object)
		if err != nil {
			fmt.Fprintf(u.Out, "note: the type of a Blueprint was not found: %v\n", err)
			return nil
		}
		named.Insert(blueprint.DefinitionName(b))
		return nil
	})
	if err == nil {
		err = u.findRevisions(ctx, known)
	}
	if err != nil {
		return err
	}
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return u.crds.List(ctx, options)
	}
	err = eachPage(ctx, list, pageSize, func(object runtime.Object) error {
		crd := object.(*apiextensionsv1.CustomResourceDefinition)
		owner := crd.Annotations[acceptance.OwnerUIDAnnotation]
		if owner == "" && acceptance.BlueprintOf(crd) == "" && !named.Has(crd.Name) {
			return nil
		}
		version := blueprint.VersionOf(crd)
		t := typeInfo{
			name: crd.Name, uid: crd.UID,
			gvr:        schema.GroupVersionResource{Group: crd.Spec.Group, Version: version, Resource: crd.Spec.Names.Plural},
			namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
			owned:      owner != "",
			orphaned:   owner != "" && !known.Has(owner),
			unlisted:   version == "",
		}
		if t.orphaned && u.DeleteInstances {
			fmt.Fprintf(u.Out, "note: %s and its instances are kept, because the type was created for the Blueprint %s with "+
				"UID %s, which does not exist here\n", t.name, cmp.Or(acceptance.BlueprintOf(crd), "(unknown)"), owner)
		}
		u.types = append(u.types, t)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the CustomResourceDefinitions: %w", err)
	}
	return nil
}

// findRevisions adds the UIDs of all Blueprints with accepted specs. After an interruption, Blueprints can be deleted
// while their types still exist.
func (u *uninstaller) findRevisions(ctx context.Context, known sets.Set[string]) error {
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		options.LabelSelector = acceptance.RevisionLabel
		return u.dynamic.Resource(controllerRevisions).Namespace(u.Namespace).List(ctx, options)
	}
	err := eachPage(ctx, list, pageSize, func(object runtime.Object) error {
		uid, _, _ := unstructured.NestedString(object.(*unstructured.Unstructured).Object, "data", "uid")
		known.Insert(uid)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the ControllerRevisions in namespace %s: %w", u.Namespace, err)
	}
	return nil
}

// includes reports whether the platform serves the namespace, which is empty for cluster-scoped instances.
func (u *uninstaller) includes(namespace string) bool {
	return namespace == "" || len(u.Namespaces) == 0 || slices.Contains(u.Namespaces, namespace)
}

// deletesInstances reports whether the instances of the type are deleted.
func (u *uninstaller) deletesInstances(t typeInfo) bool {
	return u.DeleteInstances && t.owned && !t.orphaned
}

// isDeleted reports whether the type is deleted. With Options.Namespaces, types are kept, because other namespaces can
// contain instances.
func (u *uninstaller) isDeleted(t typeInfo) bool {
	return u.deletesInstances(t) && !t.unlisted && len(u.Namespaces) == 0
}

// cleanUpTypes deletes the types that the platform created, or removes the UID of the Blueprint from them. A Blueprint
// with the same name can serve such a type again, as after the deletion of a Blueprint with the deletion policy
// Retain.
func (u *uninstaller) cleanUpTypes(ctx context.Context) error {
	retained := 0
	for _, t := range u.types {
		switch {
		case u.isDeleted(t):
			u.report("deleted", "delete", 1, "the CustomResourceDefinition %s", t.name)
			if err := u.deleteDefinition(ctx, t.name, t.uid); err != nil {
				return err
			}
		case t.owned:
			retained++
			patch := map[string]any{"metadata": map[string]any{
				"uid": t.uid, "annotations": map[string]any{acceptance.OwnerUIDAnnotation: nil},
			}}
			err := u.patch(ctx, u.metadata.Resource(definitions), t.name, patch)
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("release the CustomResourceDefinition %s: %w", t.name, err)
			}
		}
	}
	u.report("released", "release", retained, "%s, which Blueprints with the same names can serve again",
		count(retained, "CustomResourceDefinition"))
	return nil
}

var definitions = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
