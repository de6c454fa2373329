package uninstall

import (
	"context"
	"fmt"

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

// findTypes finds the types that the platform created or serves: all types that Blueprints name, and all types that
// have the annotations of a Blueprint.
func (u *uninstaller) findTypes(ctx context.Context) error {
	named := sets.New[string]()
	err := u.eachBlueprint(ctx, func(object *unstructured.Unstructured) error {
		name, _, _ := unstructured.NestedString(object.Object, "spec", "type", "crd")
		named.Insert(name)
		return nil
	})
	if err != nil {
		return err
	}
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return u.crds.List(ctx, options)
	}
	err = eachPage(ctx, list, pageSize, func(object runtime.Object) error {
		crd := object.(*apiextensionsv1.CustomResourceDefinition)
		version := blueprint.VersionOf(crd)
		if version == "" || acceptance.BlueprintOf(crd) == "" && !named.Has(crd.Name) {
			return nil
		}
		u.types = append(u.types, typeInfo{
			name: crd.Name, uid: crd.UID,
			gvr:        schema.GroupVersionResource{Group: crd.Spec.Group, Version: version, Resource: crd.Spec.Names.Plural},
			namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
			owned:      crd.Annotations[acceptance.OwnerUIDAnnotation] != "",
		})
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the CustomResourceDefinitions: %w", err)
	}
	return nil
}

// scopesOf returns the namespaces in which instances are listed.
func (u *uninstaller) scopesOf(t typeInfo) []string {
	if !t.namespaced || len(u.Namespaces) == 0 {
		return []string{metav1.NamespaceAll}
	}
	return u.Namespaces
}

// isDeleted reports whether the type is deleted. With Options.Namespaces, types are kept, because other namespaces can
// contain instances.
func (u *uninstaller) isDeleted(t typeInfo) bool {
	return u.DeleteInstances && t.owned && len(u.Namespaces) == 0
}

// cleanUpTypes deletes the types that the platform created, or removes the UID of the Blueprint from them. A Blueprint
// with the same name can serve such a type again, like after the deletion of a Blueprint with the deletion policy
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
