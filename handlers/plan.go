package handlers

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// plan is what a parent wants, made ready to be applied.
type plan struct {
	stages     [][]*child
	wanted     map[childKey]bool
	named      []schema.GroupKind                     // all kinds in Stages and Kinds, even if the mapper does not know them
	mappings   map[schema.GroupKind]*meta.RESTMapping // of those that the mapper knows, in the wanted versions
	hasForeign bool
}

// child is one wanted object.
type child struct {
	id      dynamiccontroller.ObjectIdentifiers
	kind    schema.GroupKind
	mapping *meta.RESTMapping
	apply   *unstructured.Unstructured // all that is to be applied
	hash    string                     // of apply, which has it in an annotation
	foreign bool                       // where an owner reference cannot reach
	err     error                      // why it cannot be applied yet: its kind is not known
}

// childKey tells children apart whatever version they are written in.
type childKey struct {
	kind schema.GroupKind
	key  string
}

// inventory returns the entries that the inventory must have.
func (p *plan) inventory() inventory {
	var kinds inventory
	for kind, mapping := range p.mappings {
		kinds = append(kinds, entryOf(kind, mapping.Resource))
	}
	return kinds
}

// wants tells whether a child is among the wanted, in this version.
func (p *plan) wants(id dynamiccontroller.ObjectIdentifiers) bool {
	return slices.ContainsFunc(p.stages, func(stage []*child) bool {
		return slices.ContainsFunc(stage, func(wanted *child) bool { return wanted.id == id })
	})
}

// plan says of every child what is wrong with it. That its kind is not known is told when its stage is applied.
func (c *Children) plan(id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured, desired Desired) (*plan, error) {
	p := &plan{wanted: map[childKey]bool{}, mappings: map[schema.GroupKind]*meta.RESTMapping{}}
	var errs []error
	for _, gvk := range desired.Kinds {
		p.named = append(p.named, gvk.GroupKind())
		switch mapping, err := c.config.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version); {
		case err == nil:
			p.mappings[gvk.GroupKind()] = mapping
		case !meta.IsNoMatchError(err):
			errs = append(errs, fmt.Errorf("find the resource of %s: %w", gvk.GroupKind(), err))
		}
	}
	for _, stage := range desired.Stages {
		var children []*child
		for _, object := range stage {
			p.named = append(p.named, object.GroupVersionKind().GroupKind())
			planned, err := c.planChild(parent, object)
			switch {
			case meta.IsNoMatchError(err):
				// A stage before it may define the kind.
				name := dynamiccontroller.ObjectIdentifiers{NamespacedKey: cache.MetaObjectToName(object).String()}
				planned, err = &child{id: name, kind: object.GroupVersionKind().GroupKind(), err: err}, nil
			case err == nil:
				err = p.add(id, planned)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s %s: %w", object.GroupVersionKind().GroupKind(), object.GetName(), err))
				continue
			}
			children = append(children, planned)
		}
		p.stages = append(p.stages, children)
	}
	return p, errors.Join(errs...)
}

func (p *plan) add(parent dynamiccontroller.ObjectIdentifiers, child *child) error {
	key := childKey{kind: child.kind, key: child.id.NamespacedKey}
	switch known := p.mappings[child.kind]; {
	case child.id == parent:
		return errors.New("it is the parent itself")
	case p.wanted[key]:
		return errors.New("it is wanted twice")
	case known != nil && known.Resource != child.id.GVR:
		return fmt.Errorf("the kind is wanted in two versions, %s and %s", known.Resource.Version, child.id.GVR.Version)
	}
	p.wanted[key] = true
	p.mappings[child.kind] = child.mapping
	p.hasForeign = p.hasForeign || child.foreign
	return nil
}

// planChild adds to what is wanted what makes it a child.
func (c *Children) planChild(parent, wanted *unstructured.Unstructured) (*child, error) {
	if wanted.GetName() == "" {
		return nil, errors.New("a child needs a name; one with generateName is for Expectations and Claim")
	}
	gvk := wanted.GroupVersionKind()
	mapping, err := c.config.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("find its resource: %w", err)
	}
	// What is read as a map of strings is nothing as a whole if one of them is none, and would be lost.
	for _, field := range []string{"labels", "annotations"} {
		if _, _, err := unstructured.NestedStringMap(wanted.Object, "metadata", field); err != nil {
			return nil, fmt.Errorf("its %s are not all strings: %w", field, err)
		}
	}
	apply := wanted.DeepCopy()
	delete(apply.Object, "status")
	for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"} {
		unstructured.RemoveNestedField(apply.Object, "metadata", field)
	}
	if err := encodeStringData(gvk, apply); err != nil {
		return nil, err
	}
	switch namespaced := mapping.Scope.Name() == meta.RESTScopeNameNamespace; {
	case namespaced && apply.GetNamespace() == "" && parent.GetNamespace() == "":
		return nil, errors.New("it needs a namespace, for its parent has none")
	case namespaced && apply.GetNamespace() == "":
		apply.SetNamespace(parent.GetNamespace())
	case !namespaced && apply.GetNamespace() != "":
		return nil, fmt.Errorf("it has the namespace %s, and its kind is cluster-scoped", apply.GetNamespace())
	}
	foreign := !canOwn(parent, apply.GetNamespace())
	if foreign && !c.kinds[gvk.GroupKind()] {
		return nil, fmt.Errorf("it is outside its parent's namespace %s: add its kind to ChildrenConfig.Kinds with Elsewhere set", parent.GetNamespace())
	}
	if c.config.Selector != nil && !foreign && !c.config.Selector.Matches(labels.Set(apply.GetLabels())) {
		return nil, fmt.Errorf("its labels do not match the selector %s of its parent's children", c.config.Selector)
	}
	apply.SetLabels(with(apply.GetLabels(), c.parentLabel(), string(parent.GetUID())))
	if foreign {
		apply.SetAnnotations(with(apply.GetAnnotations(), c.selfKey(), cache.MetaObjectToName(apply).String()))
	} else {
		refs, err := unstructuredRefs(append(withoutOwner(apply, parent), controllerRef(parent)))
		if err != nil {
			return nil, err
		}
		if err := unstructured.SetNestedSlice(apply.Object, refs, "metadata", "ownerReferences"); err != nil {
			return nil, err
		}
	}
	hash, err := digest(apply.Object)
	if err != nil {
		return nil, err
	}
	apply.SetAnnotations(with(apply.GetAnnotations(), c.appliedKey(), hash))
	return &child{id: identify(mapping.Resource, apply), kind: gvk.GroupKind(), mapping: mapping, apply: apply, hash: hash, foreign: foreign}, nil
}

func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}
