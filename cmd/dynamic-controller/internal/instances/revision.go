package instances

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

// Revision describes how the instances of a Blueprint are reconciled. It is immutable.
type Revision struct {
	Blueprint string // name
	// Name is the name of the ControllerRevision that stores the spec. It is empty if Compiled is nil.
	Name string
	// ReportsRevision reports whether the schema of the type has status.revision.
	ReportsRevision bool
	GVR             schema.GroupVersionResource
	// Spec is the accepted spec. Its ServiceAccountName has been resolved. It is empty for the platform's identity.
	Spec blueprint.Spec
	// Compiled is nil if only deletions of instances are processed.
	Compiled *blueprint.Compiled
	Children []Child
	// Followed lists the kinds of children that are pruned and cleaned up, including the kinds of other revisions.
	Followed []children.Kind
}

// Child is a kind of object that instances create.
type Child struct {
	GVK  schema.GroupVersionKind
	GVR  schema.GroupVersionResource
	Path string // of the first template of the kind
	// CrossNamespace reports whether the kind can have objects on which an owner reference has no effect.
	CrossNamespace bool
	// HasCRD reports whether the kind has a CustomResourceDefinition. If it does, the objects can be instances themselves.
	HasCRD bool
}

// hasCRD reports whether a kind has a CustomResourceDefinition.
func (r Revision) hasCRD(gvk schema.GroupVersionKind) bool {
	return slices.ContainsFunc(r.Children, func(child Child) bool { return child.HasCRD && child.GVK == gvk })
}

// Clients are the dependencies of [Reconcilers].
type Clients struct {
	Engine Engine
	Client dynamic.Interface
	Mapper meta.RESTMapper
	// Identities provides the identities for reading and writing children. All other requests are sent as the platform,
	// with Client.
	Identities Identities
	// Namespaces are the namespaces to which instances and children are limited. If it is empty, there is no limit.
	Namespaces []string
}

// Reconciler reconciles instances with one revision of a Blueprint.
type Reconciler struct {
	Revision
	*shared
	engine     Engine
	within     dynamiccontroller.CommonOption // limits watches: see Clients.NamespacesOf
	identities Identities
	denials    *identity.Denials
	stageOf    map[string]int // by the id of the resource
	status     *handlers.Conditions
	pauses     *handlers.Conditions
	failures   Throttle // limits messages about repeated failures.
	children   *children.Reconciler
}

// newReconciler returns a Reconciler. Its only state is cached data that can be read again.
func newReconciler(c Clients, revision Revision) (*Reconciler, error) {
	r := &Reconciler{
		Revision: revision, shared: &shared{}, engine: c.Engine, identities: c.Identities,
		denials: identity.NewDenials(clock.RealClock{}), stageOf: revision.depths(),
		within: dynamiccontroller.WithNamespaces(c.NamespacesOf(revision.GVR)...),
		status: NewConditions(c.Client, StatusManager), pauses: NewConditions(c.Client, pauseManager),
	}
	var err error
	r.children, err = children.New(children.Config{
		Client: c.Client, Mapper: c.Mapper, Name: Name, Kinds: revision.Followed, Namespaces: c.Namespaces,
		Cache: handlers.Cached(r.lister), Owned: r.ownedBy, // to find children to delete
	})
	return r, err
}

// lister returns the cached children of a type. They are read with the permissions of the platform: see cacheReader.
func (r *Reconciler) lister(child schema.GroupVersionResource) (dynamiccontroller.SecondaryLister, error) {
	return r.engine.SecondaryLister(r.GVR, r.owned(child))
}

// owned returns the key of the watch of children of a type.
func (r *Reconciler) owned(child schema.GroupVersionResource) dynamiccontroller.WatchKey {
	return dynamiccontroller.Owns(child, withParentLabel, r.within).Key()
}

// ownedBy returns the cached children of an instance that have an owner reference to it.
func (r *Reconciler) ownedBy(child schema.GroupVersionResource, instance types.UID) ([]runtime.Object, error) {
	lister, err := r.lister(child)
	if err != nil {
		return nil, err
	}
	return lister.OwnedBy(instance)
}

// watches returns the watches of the children of all revisions.
func watches(
	within dynamiccontroller.CommonOption, revisions ...Revision,
) (options []dynamiccontroller.ServeOption) {
	full, managed := dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.WithManagedFields()
	var kinds []schema.GroupVersionResource
	byAnnotation := map[schema.GroupVersionResource]bool{} // whether children can have no owner reference
	for _, r := range revisions {
		retained := map[schema.GroupVersionKind]bool{}
		for _, t := range r.templates() {
			retained[t.GVK] = retained[t.GVK] || t.DeletionPolicy == blueprint.Retain
		}
		for _, child := range r.Children {
			if !slices.Contains(kinds, child.GVR) {
				kinds = append(kinds, child.GVR)
			}
			byAnnotation[child.GVR] = byAnnotation[child.GVR] || child.CrossNamespace || retained[child.GVK]
		}
	}
	for _, kind := range kinds {
		options = append(options, dynamiccontroller.Owns(kind, full, managed, withParentLabel, within))
		if byAnnotation[kind] {
			options = append(options, dynamiccontroller.Watches(kind, instanceOf, full, managed, withParentLabel, within))
		}
	}
	return options
}

func (r Revision) templates() []blueprint.Template {
	if r.Compiled == nil {
		return nil
	}
	return r.Compiled.Templates()
}

// withParentLabel selects objects with the parent label. There can be many large objects of the same types without the
// label, such as all other Secrets in the cluster.
var withParentLabel = func() dynamiccontroller.CommonOption {
	labelled, err := labels.NewRequirement(parentLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // the key is a constant
	}
	return dynamiccontroller.WithLabelSelector(labels.NewSelector().Add(*labelled))
}()

// instanceOf returns the instance of a child that cannot have an owner reference.
func instanceOf(_ context.Context, child dynamiccontroller.Object) []string {
	if key := child.GetAnnotations()[instanceAnnotation]; key != "" && len(child.GetOwnerReferences()) == 0 {
		return []string{key}
	}
	return nil
}

// kindOf returns the kind of a template. It is empty if the template does not set it.
func kindOf(r blueprint.Resource) schema.GroupVersionKind {
	return (&unstructured.Unstructured{Object: r.Template}).GroupVersionKind()
}
