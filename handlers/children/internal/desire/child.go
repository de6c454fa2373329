package desire

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
)

// newChild returns the child for a desired object. It adds the hash and either the owner reference or the mark.
func (in *Input) newChild(spec Spec, stage int) (*Child, error) {
	if err := in.check(spec); err != nil {
		return nil, err
	}
	kind := spec.Object.GroupVersionKind().GroupKind()
	mapping, err := in.mappingOf(spec.Object.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	config, err := in.configuration(spec, mapping)
	if err != nil {
		return nil, err
	}
	if stage > 0 {
		setAnnotation(config, in.Parent.Stage(), strconv.Itoa(stage))
	}
	marked := spec.Retain || !ownerref.CanReach(in.Parent, config.GetNamespace())
	if marked {
		err = in.mark(config, spec.Retain)
	} else {
		setLabel(config, in.Parent.ParentLabel(), string(in.Parent.GetUID()))
		err = setController(config, in.Parent.Unstructured)
	}
	if err != nil {
		return nil, err
	}
	if in.Parent.Buckets {
		setLabel(config, in.Parent.BucketLabel(), in.Bucket)
	}
	kept, err := keptPaths(spec, config, in.Parent.Names)
	if err != nil {
		return nil, err
	}
	hash, size, err := hashOf(in.Parent, config, kept)
	if err != nil {
		return nil, err
	}
	setAnnotation(config, in.Parent.Applied(), hash)
	name := decide.NameOf(config)
	return &Child{
		Spec: spec, Key: Key{Kind: kind, Name: name}, Stage: stage, Group: groupOf(kind), Mapping: mapping, Size: size,
		Ready: &decide.Child{
			ID: idOf(mapping.Resource, name), GroupKind: kind, Resource: mapping.Resource, Template: config, Kept: kept,
			Hash: hash, Marked: marked, Retain: spec.Retain, Adopt: spec.Adopt, Recreate: spec.OnImmutable == Recreate,
		},
	}, nil
}

// check returns an error if a desired child is invalid, whatever its resource is.
func (in *Input) check(spec Spec) error {
	if spec.Object.GetName() == "" {
		return errors.New("must have a name; use handlers.Expectations for children with a generateName")
	}
	if err := checkOnImmutable(spec); err != nil {
		return err
	}
	if _, listed := in.Kinds[spec.Object.GroupVersionKind().GroupKind()]; !listed {
		return ErrKindNotListed
	}
	return nil
}

// mappingOf returns the mapping of a kind, and an error if the API server does not support all needed verbs for it.
func (in *Input) mappingOf(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	mapping, err := in.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("find the resource: %w", err)
	}
	verbs, err := in.Mapper.Verbs(mapping.Resource)
	if err != nil {
		return nil, fmt.Errorf("find the verbs: %w", err)
	}
	return mapping, checkVerbs(mapping, verbs)
}

// configuration returns the configuration of a child in its namespace, without what the Reconciler adds.
func (in *Input) configuration(spec Spec, mapping *meta.RESTMapping) (*unstructured.Unstructured, error) {
	config, err := configurationOf(spec.Object)
	if err != nil {
		return nil, err
	}
	if err := setNamespace(config, in.Parent.Unstructured, mapping); err != nil {
		return nil, err
	}
	namespace := config.GetNamespace()
	switch {
	case namespace != "" && !spec.Retain && len(in.Namespaces) > 0 && !slices.Contains(in.Namespaces, namespace):
		return nil, fmt.Errorf("namespace %s: %w", namespace, ErrNamespaceNotListed)
	case spec.Retain && ownerref.Refers(config, in.Parent):
		return nil, errors.New("must not have an owner reference to its parent, because it is retained")
	case !ownerref.CanReach(in.Parent, namespace) && !in.Kinds[config.GroupVersionKind().GroupKind()]:
		return nil, fmt.Errorf("is outside its parent's namespace %s; "+
			"add its kind to children.Config.Kinds with CrossNamespace set", in.Parent.GetNamespace())
	}
	p := in.Parent
	for _, key := range []string{p.Restored(), p.Retained(), p.Adopted(), p.Recreated()} {
		if config.GetAnnotations()[key] != "" {
			return nil, fmt.Errorf("must not have the annotation %s", key)
		}
	}
	return config, nil
}

// mark marks a child that is retained, or for which an owner reference has no effect.
func (in *Input) mark(config *unstructured.Unstructured, retain bool) (err error) {
	namespace := types.UID("")
	if retain {
		setAnnotation(config, in.Parent.Retained(), in.Parent.Identity())
	} else if namespace, err = in.Namespace(); err != nil {
		return err
	}
	record, err := in.Parent.Record(namespace)
	if err != nil {
		return err
	}
	setAnnotation(config, in.Parent.ParentLabel(), record)
	setAnnotation(config, in.Parent.Self(), decide.NameOf(config))
	setLabel(config, in.Parent.ParentLabel(), decide.IdentityLabel(in.Parent.Identity()))
	return nil
}

// idOf names a child in messages, like dynamiccontroller.ObjectIdentifiers: "widgets.v1.example.com namespace/name".
func idOf(resource schema.GroupVersionResource, name string) string {
	return strings.TrimSuffix(resource.Resource+"."+resource.Version+"."+resource.Group, ".") + " " + name
}
