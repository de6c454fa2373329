package platform

import (
	"context"
	"sync/atomic"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// program is what is done with the instances of a Blueprint. It is never changed, but for what says that they are to be
// counted.
type program struct {
	inputs     string // what it was made of: see judgement
	blueprint  string
	generation int64
	gvr        schema.GroupVersionResource
	// spec is the compiled spec, and revision the name of the ControllerRevision that stores it.
	spec     blueprint.Spec
	revision string
	// compiled is nil if instances are only cleaned up when they are deleted.
	compiled *blueprint.Compiled
	kinds    []childKind
	// followed are the kinds of which children are pruned and cleaned up: those of this program and of stored revisions.
	followed []handlers.ChildKind
	// mergesConditions: see statusRules.
	mergesConditions bool
	// definition is the CustomResourceDefinition of the spec, nil if the Blueprint names an existing one. schema is the
	// digest of its schema.
	definition *apiextensionsv1.CustomResourceDefinition
	schema     string
	// children is nil until the program is to be started.
	children *handlers.Children
	// uncounted: the Blueprint has been told that something happened to instances, and has not counted them since.
	uncounted atomic.Bool
}

// childKind is a type of the objects that instances become.
type childKind struct {
	gvk  schema.GroupVersionKind
	gvr  schema.GroupVersionResource
	path string // of the first template that makes one
	// foreign: some may be where an owner reference cannot reach.
	foreign bool
	// defined: the kind has a CustomResourceDefinition, and so its objects may be instances of a Blueprint too.
	defined bool
}

// cleaner returns a program that only cleans up after instances that are being deleted.
func cleaner(b *blueprint.Blueprint, gvr schema.GroupVersionResource) *program {
	return &program{inputs: "cleans up for " + string(b.UID), blueprint: b.Name, generation: b.Generation, gvr: gvr}
}

// following returns a copy of the program with Children for the given kinds. Children only cache state that can be read
// again.
func (p *Platform) following(next *program, kinds []handlers.ChildKind) (*program, error) {
	equipped := &program{
		inputs: next.inputs, blueprint: next.blueprint, generation: next.generation, gvr: next.gvr, spec: next.spec, revision: next.revision,
		compiled: next.compiled, kinds: next.kinds, followed: kinds, mergesConditions: next.mergesConditions,
		definition: next.definition, schema: next.schema,
	}
	client := p.client
	if next.compiled != nil {
		client = redactor{client, next.compiled}
	}
	var err error
	equipped.children, err = handlers.NewChildren(handlers.ChildrenConfig{
		Client: client, Mapper: p.mapper, Name: Name, Kinds: kinds,
		Cache: p.cached(equipped.listerOf(p.engines.Instances)),
		Owned: equipped.ownedIn(p.engines.Instances),
	})
	return equipped, err
}

// start serves the program, or swaps it for the one before.
func (p *Platform) start(ctx context.Context, next *program) error {
	k := &instances{program: next, engine: p.engines.Instances, status: p.status, reader: p.cached(next.listerOf(p.engines.Instances))}
	return p.engines.Instances.StartServingGVK(ctx, next.gvr,
		handlers.Object(p.cached(p.engines.Instances.Lister), k.reconcile, k.gone), next.watched()...)
}

// watched is what is watched beside the instances.
func (p *program) watched() (options []dynamiccontroller.ServeOption) {
	full := dynamiccontroller.WithCache(dynamiccontroller.CacheFull)
	for _, kind := range p.kinds {
		options = append(options, dynamiccontroller.Owns(kind.gvr, full, ofChildren))
		if kind.foreign {
			options = append(options, dynamiccontroller.Watches(kind.gvr, instanceOf, full, ofChildren))
		}
	}
	return options
}

// ofChildren selects the objects with the label that package handlers gives to children. Other objects of these types,
// such as all other Secrets of the cluster, are not children, and can be many and large.
var ofChildren = func() dynamiccontroller.CommonOption {
	labelled, err := labels.NewRequirement(parentKey, selection.Exists, nil)
	if err != nil {
		panic(err) // the key is a constant
	}
	return dynamiccontroller.WithLabelSelector(labels.NewSelector().Add(*labelled))
}()

// instanceOf says which instance a child is of that cannot have an owner reference.
func instanceOf(_ context.Context, child dynamiccontroller.Object) []string {
	if key := child.GetAnnotations()[instanceKey]; key != "" && len(child.GetOwnerReferences()) == 0 {
		return []string{key}
	}
	return nil
}

// listerFunc returns a lister for the cached objects of a type.
type listerFunc = func(schema.GroupVersionResource) (cache.GenericLister, error)

// listerOf finds children in what is watched.
func (p *program) listerOf(engine Engine) listerFunc {
	return func(child schema.GroupVersionResource) (cache.GenericLister, error) {
		return engine.SecondaryLister(p.gvr, dynamiccontroller.Owns(child, ofChildren).Key())
	}
}

// ownedIn lists the children of an instance from the index by owner. They are shared.
func (p *program) ownedIn(engine Engine) func(child schema.GroupVersionResource, instance types.UID) ([]runtime.Object, error) {
	return func(child schema.GroupVersionResource, instance types.UID) ([]runtime.Object, error) {
		lister, err := engine.SecondaryLister(p.gvr, dynamiccontroller.Owns(child, ofChildren).Key())
		if err != nil {
			return nil, err
		}
		return lister.OwnedBy(instance)
	}
}
