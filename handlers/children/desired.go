package children

import (
	"iter"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/children/internal/desire"
	"github.com/dynamic-controller/engine/handlers/children/internal/inventory"
)

// Child is a desired child.
type Child struct {
	// Object is the desired state. It must have apiVersion, kind and name. Its namespace defaults to the parent's. Its
	// status is not applied. It can have any labels except <name>/parent and, with Config.LabelBuckets, <name>/bucket.
	Object *unstructured.Unstructured
	// Retain keeps the object when it is no longer desired and when the parent is deleted. The object has the label
	// <name>/parent but no owner reference, so a watch with Owns does not reconcile the parent when the object changes.
	Retain bool
	// Adopt allows Reconcile to take over an existing object that has no controller and is not a child of another parent,
	// an object that another controller created for the same parent, or an object that an earlier parent with the same
	// name retained.
	Adopt bool
	// OnImmutable determines what happens if the API server refuses to change the child because a field is immutable. By
	// default, the child is kept, and Reconcile returns the API server's error. With OnImmutableRecreate, the child is
	// deleted and created again; see the section on recreation in the package documentation. It must not be combined with
	// Retain, and must not be set for the kinds for which CanRecreate returns false.
	OnImmutable OnImmutable
	// KeepExisting lists fields that are set when they do not exist, and never changed or removed by Reconcile once they
	// exist: fields that others may set, such as the replicas that an autoscaler changes, and values that are generated
	// once, such as a password. A value is judged with the object that a write replaces, not with a cache that can be
	// behind, so that two different desired values never replace each other. A change of such a value in the desired
	// child alone causes no write. See the section on kept fields in the package documentation.
	KeepExisting []KeptField
}

// These errors occur in the results of children.
var (
	errInvalidNamespace = desire.ErrInvalidNamespace
	errKindNotListed    = desire.ErrKindNotListed
)

// Stage returns a stage of children that have only an Object, without Retain or Adopt.
func Stage(objects ...*unstructured.Unstructured) []Child {
	stage := make([]Child, len(objects))
	for i, object := range objects {
		stage[i].Object = object
	}
	return stage
}

// desire returns the part of desired that package desire uses.
func (d Desired) desire() desire.Desired {
	stages := make([][]desire.Spec, len(d.Stages))
	for n, stage := range d.Stages {
		stages[n] = make([]desire.Spec, len(stage))
		for i, child := range stage {
			spec := desire.Spec{
				Object: child.Object, Retain: child.Retain, Adopt: child.Adopt, OnImmutable: string(child.OnImmutable),
			}
			for _, field := range child.KeepExisting {
				spec.KeepExisting = append(spec.KeepExisting, field.Path)
			}
			stages[n][i] = spec
		}
	}
	return desire.Desired{Stages: stages, Absent: d.Absent, Kinds: d.Kinds}
}

// childKey identifies a child regardless of its API version.
type childKey = desire.Key

// child is a desired child in one call.
type child struct {
	*desire.Child
	desired *decide.Child                       // Child.Ready
	id      dynamiccontroller.ObjectIdentifiers // the GVR is empty if the mapper lacks the kind
	kind    schema.GroupKind                    // Child.Kind
	known   *decide.Known                       // what this run knows about the child
	seen    decide.Seen
	result  ChildResult
	pending *PendingChild // an object with its name that is being deleted
	// needsParent is set if the child must be created, and the parent has not been read.
	needsParent bool
	// uncached is set if the cache does not serve the type.
	uncached bool
}

// desiredSet contains the desired children of a parent in one call. All other fields are those of desire.Set.
type desiredSet struct {
	stages       [][]*child
	keys         map[childKey]bool
	mappings     map[schema.GroupKind]*meta.RESTMapping
	namespaces   map[schema.GroupKind]sets.Set[string]
	needsCleanUp bool
	needsWitness bool
}

// newDesiredSet validates the desired children. Its error joins the errors for all children. A kind that the mapper
// lacks is an error only once its stage is applied.
func (c *call) newDesiredSet(desired desire.Desired) (*desiredSet, error) {
	set, err := desire.New(desire.Input{
		Parent: c.rules, Resource: c.id.GVR, Bucket: dynamiccontroller.BucketOf(c.id.GVR.GroupResource()),
		Kinds: c.kinds, Namespaces: c.config.Namespaces, Mapper: mapper{c.config.Mapper}, Namespace: c.namespaceUID,
	}, desired)
	if err != nil {
		return nil, err
	}
	s := &desiredSet{
		stages: make([][]*child, len(set.Stages)), keys: set.Keys, mappings: set.Mappings, namespaces: set.Namespaces,
		needsCleanUp: set.NeedsCleanUp, needsWitness: set.NeedsWitness,
	}
	for n, stage := range set.Stages {
		for _, desired := range stage {
			s.stages[n] = append(s.stages[n], c.newChild(desired))
		}
	}
	return s, nil
}

// newChild returns the state of a desired child in this call.
func (c *call) newChild(desired *desire.Child) *child {
	d := &child{Child: desired, desired: desired.Ready, kind: desired.Kind}
	d.id.NamespacedKey = desired.Name
	if desired.Mapping != nil {
		d.id.GVR = desired.Mapping.Resource
	}
	d.known, d.result = c.entry.child(d.id), d.newResult()
	return d
}

// inventory returns the entries that the parent's inventory must contain.
func (s *desiredSet) inventory() inventory.Inventory {
	var kinds inventory.Inventory
	for kind, mapping := range s.mappings {
		entry := inventory.New(kind, mapping.Resource)
		entry.Stage, entry.Namespaces = max(len(s.stages)-1, 0), sets.List(s.namespaces[kind])
		kinds = append(kinds, entry)
	}
	return kinds
}

// all returns the desired children in order.
func (s *desiredSet) all() iter.Seq[*child] {
	return func(yield func(*child) bool) {
		for _, stage := range s.stages {
			for _, child := range stage {
				if !yield(child) {
					return
				}
			}
		}
	}
}
