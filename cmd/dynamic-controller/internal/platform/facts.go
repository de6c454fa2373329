package platform

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/common"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// facts are what a judgement is made of besides the Blueprint's spec.
type facts struct {
	blueprint string // UID and generation
	// incompatible reports whether the Blueprint's annotation allows this generation to change the schema incompatibly.
	incompatible bool
	crd          *apiextensionsv1.CustomResourceDefinition
	kinds        map[schema.GroupVersionKind]*meta.RESTMapping // nil for unknown kinds
	meant        map[schema.GroupVersionKind]string            // suggestions for unknown kinds
	// crds are those of the kinds that have one.
	crds map[schema.GroupVersionKind]*apiextensionsv1.CustomResourceDefinition
	// published describes those that have none.
	published map[schema.GroupVersionKind]publishedSchema
	// unread: some of that could not be read. Less is checked.
	unread bool
}

// publishedSchema is what the API server says of the objects of a kind, and a name for all that it says there.
type publishedSchema struct {
	schema common.Schema
	name   string
}

func (p *Platform) factsFor(ctx context.Context, b *blueprint.Blueprint, own claim) (f facts, err error) {
	f = facts{blueprint: fmt.Sprintf("%s/%d", b.UID, b.Generation), incompatible: allowsIncompatible(b), kinds: map[schema.GroupVersionKind]*meta.RESTMapping{},
		meant:     map[schema.GroupVersionKind]string{},
		crds:      map[schema.GroupVersionKind]*apiextensionsv1.CustomResourceDefinition{},
		published: map[schema.GroupVersionKind]publishedSchema{}}
	if f.crd, err = p.crdOf(own.crd); err != nil {
		return f, err
	}
	for _, r := range b.Spec.Resources {
		gvk := kindOf(r)
		if _, has := f.kinds[gvk]; has {
			continue
		}
		mapping, err := p.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		switch {
		case meta.IsNoMatchError(err) || err == nil && !p.isKind(gvk, mapping):
			f.kinds[gvk] = nil
			f.meant[gvk] = p.kindsMeant(gvk)
		case err != nil:
			return f, fmt.Errorf("find the resource of %s: %w", gvk, err)
		default:
			f.kinds[gvk] = mapping
			if f.crds[gvk], err = p.crdOf(mapping.Resource.GroupResource().String()); err != nil {
				return f, err
			}
			if f.crds[gvk] != nil {
				continue
			}
			if f.published[gvk], err = p.publishedFor(ctx, gvk); err != nil {
				if ctx.Err() != nil {
					return f, err
				}
				f.unread = true
				p.log.Info("templates are not checked against what the API server publishes, will retry", keyBlueprint, b.Name, keyProblem, err.Error())
			}
		}
	}
	return f, nil
}

func (p *Platform) publishedFor(ctx context.Context, gvk schema.GroupVersionKind) (s publishedSchema, err error) {
	s.schema, s.name, err = p.schemas.For(ctx, gvk)
	return s, err
}

// schemaFor describes the objects of a kind: nil if nothing does, or nothing that can be read.
func (f facts) schemaFor(gvk schema.GroupVersionKind) common.Schema {
	if crd := f.crds[gvk]; crd != nil {
		described, err := blueprint.SchemaOf(crd, gvk.Version)
		if err != nil {
			return nil
		}
		return described
	}
	return f.published[gvk].schema
}

// String is the same for the same facts. Of a definition that the platform made for the Blueprint only that is one.
func (f facts) String() string {
	parts := []string{f.blueprint}
	if f.crd != nil {
		annotations := f.crd.Annotations
		parts = append(parts, fmt.Sprintf("%s/%d/%s/%s/%s", f.crd.UID, f.crd.Generation,
			annotations[madeByKey], annotations[madeForKey], annotations[allowedKey]))
	}
	if f.incompatible {
		parts = append(parts, "allows incompatible changes of the schema")
	}
	for gvk, mapping := range f.kinds {
		part := gvk.String()
		if mapping != nil {
			part += fmt.Sprintf(" is %s %s", mapping.Resource, mapping.Scope.Name())
		}
		if meant := f.meant[gvk]; meant != "" {
			part += " may be " + meant
		}
		if crd := f.crds[gvk]; crd != nil {
			part += fmt.Sprintf(" as %s/%d says", crd.UID, crd.Generation)
		}
		if s := f.published[gvk]; s.schema != nil {
			part += " as is published in " + s.name
		}
		parts = append(parts, part)
	}
	slices.Sort(parts[1:])
	return strings.Join(parts, "\n")
}

// served is what of the facts makes another program: not what changes when the platform makes the definition, nor what the
// API server publishes, by which nothing is rendered, and which is another each time when two are of different versions.
func (f facts) served() string {
	f.published, f.incompatible = nil, false
	if f.crd != nil && f.crd.Annotations[madeByKey] != "" {
		f.crd = nil
	}
	return f.String()
}
