package platform

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// judge says what comes of a Blueprint: the judgement before if nothing has changed that it was made of. The rights are
// asked for each time, and those that are missing returned.
func (p *Platform) judge(ctx context.Context, b *blueprint.Blueprint, own claim, before judgement) (judgement, []right, error) {
	facts, err := p.factsFor(ctx, b, own)
	if err != nil {
		return judgement{}, nil, err
	}
	next := before
	if inputs := facts.String(); before.inputs != inputs || before.refusal != nil && before.refusal.reason == reasonRight {
		if next, err = p.compile(b, facts); err != nil {
			return judgement{}, nil, err
		}
		next.inputs = inputs
	}
	next.unread = facts.unread
	if next.refusal != nil {
		return next, nil, nil
	}
	missing, err := p.rights.missing(ctx, next.rights)
	if err != nil {
		return judgement{}, nil, err
	}
	if refused := refuseMissing(missing); refused != nil {
		next.refusal, next.program, next.definition = refused, nil, nil
	}
	return next, missing, nil
}

// Reasons of Blueprints that are refused.
const (
	reasonInvalid = "Invalid"
	reasonClaimed = "TypeClaimed"
	reasonNotOurs = "TypeNotOurs"
	reasonStatus  = "TypeHasNoStatus"
	reasonRight   = "RightMissing"
)

// compile makes a judgement, but for the rights.
func (p *Platform) compile(b *blueprint.Blueprint, f facts) (judgement, error) {
	crd, named := f.crd, b.Spec.Type.CRD != ""
	name := blueprint.DefinitionName(b)
	switch {
	case name == blueprints.GroupResource().String():
		// Whoever served it, or let its objects go, would end the platform. Compiling says so too.
		return judgement{refusal: &refusal{reasonInvalid, "spec.type: Blueprints are the platform's own"}}, nil
	case f.holder != "":
		return judgement{refusal: &refusal{reasonClaimed, fmt.Sprintf("spec.type: %s is the type of Blueprint %s, which is older", name, f.holder)}}, nil
	case !named && crd != nil && !isMadeFor(crd, b):
		return judgement{refusal: &refusal{reasonNotOurs, fmt.Sprintf(
			"spec.type: the CustomResourceDefinition %s was not made for this Blueprint (its annotation %s is %q): to serve a type as it is, name it with spec.type.crd",
			name, madeForKey, crd.Annotations[madeForKey])}}, nil
	}
	var problems blueprint.Problems
	options := blueprint.Options{SchemaFor: f.schemaFor, IsNamespaced: func(gvk schema.GroupVersionKind) (namespaced, known bool) {
		mapping := f.kinds[gvk]
		return mapping != nil && mapping.Scope.Name() == meta.RESTScopeNameNamespace, mapping != nil
	}}
	if named {
		options.CRD = crd
	}
	compiled, err := blueprint.Compile(b, options)
	if err != nil && !errors.As(err, &problems) {
		return judgement{}, err
	}
	problems = append(problems, unknownKinds(b, f.kinds, f.meant)...)
	var out judgement
	// What is there of instances can go, whatever the Blueprint says now.
	made := crd
	if !named && compiled != nil {
		made = compiled.Definition()
	}
	if made != nil {
		out.gvr = gvrOf(made)
	}
	if len(problems) > 0 {
		out.refusal = &refusal{reasonInvalid, problems.Error()}
		return out, nil
	}
	rules := statusRules{mergesConditions: true}
	if named && crd != nil {
		if rules = rulesOf(crd); rules.problem != "" {
			out.refusal = &refusal{reasonStatus, fmt.Sprintf("spec.type.crd: the platform cannot keep the status of instances: %s", rules.problem)}
			return out, nil
		}
	}
	children := childKinds(b, compiled, f)
	out.rights = rightsOf(b, out.gvr, children)
	if !named {
		out.definition = compiled.Definition()
	}
	if !out.gvr.Empty() {
		out.program = &program{
			inputs: f.served(), blueprint: b.Name, generation: b.Generation, spec: b.Spec, gvr: out.gvr,
			compiled: compiled, kinds: children, mergesConditions: rules.mergesConditions,
		}
		out.program.follow(out.program.childKinds())
	}
	return out, nil
}
