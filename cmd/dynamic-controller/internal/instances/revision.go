package instances

import (
	"cmp"
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/events"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

// Revision describes how the instances of a Blueprint are reconciled. It is immutable.
type Revision struct {
	Blueprint string // the name of the Blueprint
	// Name is the name of the ControllerRevision that stores the spec. It is empty if Compiled is nil.
	Name string
	// ReportsRevision reports whether the schema of the type has status.revision.
	ReportsRevision bool
	GVR             schema.GroupVersionResource
	// Spec is the accepted spec, with the ServiceAccountName already resolved. An empty ServiceAccountName stands for the
	// platform's identity.
	Spec blueprint.Spec
	// Compiled is nil if only deletions are processed.
	Compiled *blueprint.Compiled
	Children []Child
	// References lists the kinds of existing objects that instances refer to. Only GVK, GVR and Path are set.
	References []Child
	// Followed lists the kinds of children that are pruned and cleaned up, including those of other revisions.
	Followed []children.Kind
}

// Child is a kind of object that instances create.
type Child struct {
	GVK  schema.GroupVersionKind
	GVR  schema.GroupVersionResource
	Path string // the path of the first template of the kind
	// CrossNamespace reports whether the kind can have children on which owner references have no effect.
	CrossNamespace bool
	// HasCRD reports whether the kind has a CustomResourceDefinition. Objects of such a kind can themselves be instances.
	HasCRD bool
}

// hasCRD reports whether a kind has a CustomResourceDefinition.
func (r Revision) hasCRD(gvk schema.GroupVersionKind) bool {
	return slices.ContainsFunc(r.Children, func(child Child) bool { return child.HasCRD && child.GVK == gvk })
}

// Clients contains the dependencies of [Reconcilers].
type Clients struct {
	Engine Engine
	// Client reads and writes instances. Its responses can lack the content of large instances. See [Reduce].
	Client dynamic.Interface
	// Contents reads the content of instances that are too large for the cache. Defaults to Client.
	Contents dynamic.Interface
	// Memory limits the memory of all reconciles together. If it is nil, there is no limit.
	Memory *memory.Budget
	Mapper meta.RESTMapper
	// Identities provides the identities that read and write children. All other requests use Client and the platform's
	// identity.
	Identities Identities
	// Namespaces restricts instances and children to these namespaces. If it is empty, there is no restriction.
	Namespaces []string
	// Record records events about instances. It is optional.
	Record func(events.Event)

	written *children.Memory // shared by all reconcilers of a Blueprint
}

// Reconciler reconciles instances with one revision of a Blueprint.
type Reconciler struct {
	Revision
	*shared
	engine     Engine
	client     dynamic.Interface // client of the platform; see Clients.Client
	memory     *memory.Budget
	within     dynamiccontroller.CommonOption // restricts watches to Clients.Namespaces
	namespaces []string                       // the result of Clients.NamespacesOf for the type
	identities Identities
	denials    *identity.Denials
	stageOf    map[string]int // by resource id
	status     *handlers.Conditions
	pauses     *handlers.Conditions
	messages   Throttle // used by throttleMessage
	reviews    Throttle // used by staleFields
	children   *children.Reconciler
	record     func(events.Event)
}

// newReconciler returns a Reconciler. The Reconciler has no state except caches that can be rebuilt.
func newReconciler(c Clients, revision Revision) (*Reconciler, error) {
	written := cmp.Or(c.written, &children.Memory{})
	r := &Reconciler{
		Revision: revision, shared: newShared(written), engine: c.Engine, client: c.Client, memory: c.Memory,
		identities: c.Identities,
		denials:    identity.NewDenials(clock.RealClock{}), stageOf: revision.depths(),
		within: dynamiccontroller.WithNamespaces(c.NamespacesOf(revision.GVR)...), namespaces: c.NamespacesOf(revision.GVR),
		record: c.Record,
	}
	if r.record == nil {
		r.record = func(events.Event) {}
	}
	r.status = NewConditions(c.Client, StatusManager, r.statusWritten)
	r.pauses = NewConditions(c.Client, pauseManager, func(_ context.Context, _, now *unstructured.Unstructured) {
		r.statuses.record(now)
	})
	var err error
	r.children, err = children.New(children.Config{
		Client: c.Client, Mapper: c.Mapper, Name: Name, Kinds: append([]children.Kind{}, revision.Followed...),
		Namespaces: c.Namespaces,
		Cache:      children.Cached(r.lister), // to find children to delete
		Reserve:    reserve,
		Memory:     written,
		IdentityOf: r.identityOf,
	})
	return r, err
}

// lister returns the cached children of a type. They were read with the permissions of the platform. See cacheReader.
func (r *Reconciler) lister(child schema.GroupVersionResource) (dynamiccontroller.SecondaryLister, error) {
	return r.engine.SecondaryLister(r.GVR, r.owned(child))
}

// owned returns the key of the watch for children of a type.
func (r *Reconciler) owned(child schema.GroupVersionResource) dynamiccontroller.WatchKey {
	return dynamiccontroller.Owns(child, withParentLabel, r.within).Key()
}

// ownedBy returns the cached children that have an owner reference to the instance.
func (r *Reconciler) ownedBy(
	child schema.GroupVersionResource, instance types.UID,
) ([]dynamiccontroller.Object, error) {
	lister, err := r.lister(child)
	if err != nil {
		return nil, err
	}
	return lister.OwnedBy(instance)
}

// watches returns the watches for the children of all revisions.
func watches(
	within dynamiccontroller.CommonOption, revisions ...Revision,
) (options []dynamiccontroller.ServeOption) {
	full, managed := dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.WithManagedFields()
	var kinds []schema.GroupVersionResource
	byAnnotation := map[schema.GroupVersionResource]bool{} // types whose children can lack an owner reference
	for _, r := range revisions {
		retained := map[schema.GroupVersionKind]bool{}
		for _, t := range r.templates() {
			retained[t.GVK] = retained[t.GVK] || t.DeletionPolicy == blueprint.Retain // references are never retained
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
			options = append(options,
				dynamiccontroller.Watches(kind, instanceOf, full, managed, withParentLabel, byInstance, within))
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

// withParentLabel selects objects that have the parent label. Without this selector, the cache would contain all
// objects of the type, such as all Secrets in the cluster.
var withParentLabel = func() dynamiccontroller.CommonOption {
	labelled, err := labels.NewRequirement(parentLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // cannot happen: the key is a constant
	}
	return dynamiccontroller.WithLabelSelector(labels.NewSelector().Add(*labelled))
}()

// instanceOf returns the key of the instance that a child without an owner reference belongs to.
func instanceOf(_ context.Context, child dynamiccontroller.Object) []string {
	if key := child.GetAnnotations()[instanceAnnotation]; key != "" && len(child.GetOwnerReferences()) == 0 {
		return []string{key}
	}
	return nil
}

// byInstance is the index of children without an owner reference.
var byInstance = dynamiccontroller.WithIndex(instanceAnnotation, func(child dynamiccontroller.Object) []string {
	return instanceOf(context.Background(), child)
})

// isServed reports whether the platform reconciles children of this kind as instances.
func (r *Reconciler) isServed(gvk schema.GroupVersionKind) bool {
	i := slices.IndexFunc(r.Children, func(child Child) bool { return child.HasCRD && child.GVK == gvk })
	if i < 0 || r.Children[i].GVR == blueprint.GroupVersionResource {
		return false
	}
	_, err := r.engine.Lister(r.Children[i].GVR)
	return err == nil
}

// kindOf returns the kind of a template, or an empty kind if the template sets none.
func kindOf(r blueprint.Resource) schema.GroupVersionKind {
	return (&unstructured.Unstructured{Object: r.Template}).GroupVersionKind()
}
