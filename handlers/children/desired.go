package children

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/children/internal/inventory"
	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
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

// errInvalidNamespace is returned for a child whose namespace would make the inventory malformed.
var errInvalidNamespace = errors.New("invalid namespace")

// errKindNotListed is returned for a child that could not be pruned later.
var errKindNotListed = errors.New("the kind must be in children.Config.Kinds")

// Stage returns a stage of children that have only an Object, without Retain or Adopt.
func Stage(objects ...*unstructured.Unstructured) []Child {
	stage := make([]Child, len(objects))
	for i, object := range objects {
		stage[i].Object = object
	}
	return stage
}

// desiredSet contains the desired children of a parent, ready to be applied.
type desiredSet struct {
	stages       [][]*child
	keys         map[childKey]bool
	mappings     map[schema.GroupKind]*meta.RESTMapping // the known kinds in the desired versions
	namespaces   map[schema.GroupKind]sets.Set[string]  // excludes the parent's, and those of retained children
	needsCleanUp bool                                   // whether the parent needs the finalizer
	needsWitness bool                                   // whether the parent needs a witness, see orphan.go
}

// child is a desired child in one call.
type child struct {
	Child
	desired *decide.Child                       // nil if err is set before the child is complete
	id      dynamiccontroller.ObjectIdentifiers // the GVR is empty if the mapper lacks the kind
	kind    schema.GroupKind
	mapping *meta.RESTMapping
	size    int64 // the size of the configuration in bytes, as JSON
	// err is why the child cannot be applied: the mapper lacks its kind, its kind is not supported, or its namespace is
	// invalid.
	err     error
	known   *decide.Known // what this run knows about the child
	seen    decide.Seen
	result  ChildResult
	pending *PendingChild // an object with its name that is being deleted
	// needsParent is set if the child must be created, and the parent has not been read.
	needsParent bool
	// uncached is set if the cache does not serve the type.
	uncached bool
}

// needsWitness reports whether the witness decides if the child is deleted with its parent.
func (d *child) needsWitness() bool { return d.desired.Marked && !d.Retain }

// childKey identifies a child regardless of its API version.
type childKey struct {
	kind schema.GroupKind
	key  string
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

// newDesiredSet validates the desired children. Its error joins the errors for all children. A kind that the mapper
// lacks is an error only once its stage is applied.
func (c *call) newDesiredSet(ctx context.Context, desired Desired) (*desiredSet, error) {
	s := &desiredSet{
		keys: map[childKey]bool{}, mappings: map[schema.GroupKind]*meta.RESTMapping{},
		namespaces:   map[schema.GroupKind]sets.Set[string]{},
		needsCleanUp: len(desired.Stages) > 1,
	}
	var errs []error
	for _, gvk := range desired.Kinds {
		if !c.isListed(gvk.GroupKind()) {
			errs = append(errs, fmt.Errorf("desired kind %s: %w", gvk.GroupKind(), errKindNotListed))
			continue
		}
		switch mapping, err := c.config.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version); {
		case err == nil:
			s.mappings[gvk.GroupKind()] = mapping
		case !isUnmapped(err):
			errs = append(errs, fmt.Errorf("find the resource for %s: %w", gvk.GroupKind(), err))
		}
	}
	for stage, objects := range desired.Stages {
		var children []*child
		for _, object := range objects {
			kind := object.Object.GroupVersionKind().GroupKind()
			next, err := c.newChild(ctx, object, stage)
			switch {
			case isUnmapped(err), errors.Is(err, ErrKindNotSupported):
				id := dynamiccontroller.ObjectIdentifiers{NamespacedKey: cache.MetaObjectToName(object.Object).String()}
				next, err = &child{Child: object, id: id, kind: kind, err: err}, nil
			case err == nil:
				err = s.add(c.id, next)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s %s: %w", kind, object.Object.GetName(), err))
				continue
			}
			next.known, next.result = c.cache.child(next.id), next.newResult()
			children = append(children, next)
		}
		s.stages = append(s.stages, children)
	}
	return s, errors.Join(errs...)
}

// isUnmapped reports whether a lookup failed because the mapper lacks the kind: the kind is unknown, or its group's
// discovery fails.
func isUnmapped(err error) bool { return meta.IsNoMatchError(err) || isUndiscovered(err) }

// isUndiscovered reports whether a lookup failed because the discovery of the group fails, so that the kind can exist.
func isUndiscovered(err error) bool {
	_, failed := discovery.GroupDiscoveryFailedErrorGroups(err)
	return failed
}

func (s *desiredSet) add(parent dynamiccontroller.ObjectIdentifiers, child *child) error {
	key := childKey{kind: child.kind, key: child.id.NamespacedKey}
	switch known := s.mappings[child.kind]; {
	case child.id == parent:
		return errors.New("must not be the parent itself")
	case s.keys[key]:
		return errors.New("must not be desired twice")
	case known != nil && known.Resource != child.id.GVR:
		return fmt.Errorf("its kind must not be desired in two versions, %s and %s",
			known.Resource.Version, child.id.GVR.Version)
	}
	s.keys[key] = true
	s.mappings[child.kind] = child.mapping
	s.needsCleanUp = s.needsCleanUp || child.needsWitness()
	if namespace := child.desired.Template.GetNamespace(); namespace != "" && namespace != parent.Namespace() && !child.Retain {
		if problems := content.IsDNS1123Label(namespace); len(problems) > 0 {
			child.err = fmt.Errorf("%w: %q: %s", errInvalidNamespace, namespace, problems[0])
			return nil
		}
		if s.namespaces[child.kind] == nil {
			s.namespaces[child.kind] = sets.New[string]()
		}
		s.namespaces[child.kind].Insert(namespace)
	}
	s.needsWitness = s.needsWitness || child.needsWitness()
	return nil
}

// checkDesired returns an error if a desired child is invalid.
func (c *call) checkDesired(desired Child) error {
	if desired.Object.GetName() == "" {
		return errors.New("must have a name; use handlers.Expectations for children with a generateName")
	}
	if err := desired.OnImmutable.check(desired); err != nil {
		return err
	}
	if !c.isListed(desired.Object.GroupVersionKind().GroupKind()) {
		return errKindNotListed
	}
	return nil
}

// newChild returns the child for a desired object. It adds the hash and either the owner reference or the mark.
func (c *call) newChild(ctx context.Context, desired Child, stage int) (*child, error) {
	object := desired.Object
	if err := c.checkDesired(desired); err != nil {
		return nil, err
	}
	gvk := object.GroupVersionKind()
	mapping, err := c.config.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("find the resource: %w", err)
	}
	if err := c.checkVerbs(mapping); err != nil {
		return nil, err
	}
	config, err := configurationOf(object)
	if err != nil {
		return nil, err
	}
	if err := setNamespace(config, c.parent, mapping); err != nil {
		return nil, err
	}
	if namespace := config.GetNamespace(); namespace != "" && !desired.Retain && !c.isListedNamespace(namespace) {
		return nil, fmt.Errorf("namespace %s: %w", namespace, ErrNamespaceNotListed)
	}
	if desired.Retain && ownerref.Refers(config, c.parent) {
		return nil, errors.New("must not have an owner reference to its parent, because it is retained")
	}
	crossNamespace := !ownerref.CanReach(c.parent, config.GetNamespace())
	if crossNamespace && !c.kinds[gvk.GroupKind()] {
		return nil, fmt.Errorf("is outside its parent's namespace %s; "+
			"add its kind to children.Config.Kinds with CrossNamespace set", c.parent.GetNamespace())
	}
	for _, key := range []string{c.names.Restored(), c.names.Retained(), c.names.Adopted(), c.names.Recreated()} {
		if config.GetAnnotations()[key] != "" {
			return nil, fmt.Errorf("must not have the annotation %s", key)
		}
	}
	annotate := func(key, value string) { config.SetAnnotations(with(config.GetAnnotations(), key, value)) }
	if stage > 0 {
		annotate(c.names.Stage(), strconv.Itoa(stage))
	}
	if desired.Retain {
		annotate(c.names.Retained(), c.rules.Identity())
	}
	label := string(c.parent.GetUID())
	if crossNamespace || desired.Retain {
		namespace := types.UID("")
		if !desired.Retain {
			if namespace, err = c.namespaceUID(); err != nil {
				return nil, err
			}
		}
		record, err := c.rules.Record(namespace)
		if err != nil {
			return nil, err
		}
		annotate(c.names.ParentLabel(), record)
		annotate(c.names.Self(), cache.MetaObjectToName(config).String())
		label = decide.IdentityLabel(c.rules.Identity())
	} else if err := setController(config, c.parent); err != nil {
		return nil, err
	}
	config.SetLabels(with(config.GetLabels(), c.names.ParentLabel(), label))
	if c.config.LabelBuckets {
		bucket := dynamiccontroller.BucketOf(c.id.GVR.GroupResource())
		config.SetLabels(with(config.GetLabels(), c.names.BucketLabel(), bucket))
	}
	kept, err := c.keptPaths(desired, config)
	if err != nil {
		return nil, err
	}
	hash, size, err := c.hashOf(config, kept)
	if err != nil {
		return nil, err
	}
	annotate(c.names.Applied(), hash)
	id := live.Identify(mapping.Resource, config)
	return &child{
		Child: desired, id: id, kind: gvk.GroupKind(), mapping: mapping, size: size,
		desired: &decide.Child{
			ID: id.String(), GroupKind: gvk.GroupKind(), Resource: mapping.Resource, Template: config, Kept: kept, Hash: hash,
			Marked: crossNamespace || desired.Retain, Retain: desired.Retain, Adopt: desired.Adopt,
			Recreate: desired.OnImmutable == OnImmutableRecreate,
		},
	}, nil
}

// hashOf returns the value of the annotation <name>/applied, and the size of the configuration. The value consists of
// two digests: one of the configuration and the identity, and one of the kinds, namespaces and names of the parent and
// the child. The second one is the same after a restore from a backup.
func (c *call) hashOf(
	config *unstructured.Unstructured, kept []fieldpath.Path,
) (hash string, size int64, err error) {
	hashed := []any{decide.Without(config, kept).Object}
	for _, path := range kept {
		hashed = append(hashed, path.String()) // a change of a kept value causes no write
	}
	if c.as.Name != "" {
		hashed = append(hashed, c.as.Name) // a child is applied again if the identity changes
	}
	hash, size, err = applied.DigestAndSize(hashed...)
	if err != nil {
		return "", 0, err
	}
	names, err := applied.Digest(c.rules.Identity(), config.GetKind(), cache.MetaObjectToName(config).String())
	if err != nil {
		return "", 0, err
	}
	return hash + "." + names[:16], size, nil
}

func setController(config, parent *unstructured.Unstructured) error {
	refs, err := ownerref.WithController(config, parent)
	if err != nil {
		return err
	}
	return unstructured.SetNestedSlice(config.Object, refs, "metadata", "ownerReferences")
}

// configurationOf returns a copy of an object without the fields that the API server sets.
func configurationOf(object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	// If any value is not a string, GetLabels and GetAnnotations return nil, and all other values would be lost.
	for _, field := range []string{"labels", "annotations"} {
		if _, _, err := unstructured.NestedStringMap(object.Object, "metadata", field); err != nil {
			return nil, fmt.Errorf("metadata.%s: must be a map of strings", field)
		}
	}
	config := object.DeepCopy()
	delete(config.Object, "status")
	for _, field := range []string{
		"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
		"managedFields", "selfLink",
	} {
		unstructured.RemoveNestedField(config.Object, "metadata", field)
	}
	return config, encodeStringData(config)
}

// setNamespace sets the namespace of a child to the parent's unless the child has a namespace or is cluster-scoped.
func setNamespace(config, parent *unstructured.Unstructured, mapping *meta.RESTMapping) error {
	switch {
	case isClusterScoped(mapping) && config.GetNamespace() != "":
		return fmt.Errorf("must not have the namespace %s, because its kind is cluster-scoped", config.GetNamespace())
	case isClusterScoped(mapping), config.GetNamespace() != "":
		return nil
	case parent.GetNamespace() == "":
		return errors.New("must have a namespace, because its parent has none")
	}
	config.SetNamespace(parent.GetNamespace())
	return nil
}

func isClusterScoped(mapping *meta.RESTMapping) bool {
	return mapping.Scope.Name() == meta.RESTScopeNameRoot
}

func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}
