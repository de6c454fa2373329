package platform

import (
	"context"
	"errors"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// judge decides whether a Blueprint is accepted, and which program serves it. It compiles the Blueprint only if its
// inputs have changed. It checks permissions and claims on every call, and returns the missing permissions.
func (p *Platform) judge(ctx context.Context, b *blueprint.Blueprint, own claim, before judgement) (judgement, []right, error) {
	facts, err := p.factsFor(ctx, b, own)
	if err != nil {
		return judgement{}, nil, err
	}
	next := before
	if inputs := facts.String(); before.inputs != inputs || before.refusal != nil && !before.refusal.isOfInputs() {
		if next, err = p.compile(b, facts); err != nil {
			return judgement{}, nil, err
		}
		next.inputs = inputs
	}
	next.unread = facts.unread
	var missing []right
	if next.refusal == nil {
		if missing, err = p.rights.missing(ctx, next.rights); err != nil {
			return judgement{}, nil, err
		}
		if refused := refuseMissing(missing); refused != nil {
			next.refusal, next.program, next.definition = refused, nil, nil
		}
	}
	next.faulty = next.refusal != nil
	holder, err := p.holder(own, facts.crd, next.faulty)
	if err != nil {
		return judgement{}, nil, err
	}
	if holder != "" {
		next.refusal = &refusal{reasonClaimed, fmt.Sprintf("spec.type: %s is already claimed by Blueprint %s", own.crd, holder)}
		next.gvr, next.program, next.definition = schema.GroupVersionResource{}, nil, nil
		return next, nil, nil
	}
	return next, missing, nil
}

// Reasons of Blueprints that are refused.
const (
	reasonInvalid = "Invalid"
	reasonClaimed = "TypeClaimed"
	reasonNotOurs = "TypeNotOurs"
	reasonConsent = "ConsentMissing"
	reasonStatus  = "TypeHasNoStatus"
	reasonRight   = "RightMissing"
	reasonBudget  = "BudgetExceeded"

	reasonIncompatible = "IncompatibleSchema"
)

// isOfInputs reports whether the refusal depends only on the inputs of a judgement, as opposed to permissions, claims,
// the memory budget or history.
func (r *refusal) isOfInputs() bool {
	return r.reason != reasonRight && r.reason != reasonClaimed && r.reason != reasonConsent && r.reason != reasonBudget
}

// compile makes a judgement, except for permissions and claims. A spec for which there is too little memory is not compiled.
func (p *Platform) compile(b *blueprint.Blueprint, f facts) (judgement, error) {
	crd, named := f.crd, b.Spec.Type.CRD != ""
	name := blueprint.DefinitionName(b)
	switch {
	case name == blueprints.GroupResource().String():
		// Whoever served it, or let its objects go, would end the platform. Compiling says so too.
		return judgement{refusal: &refusal{reasonInvalid, "spec.type: Blueprints are the platform's own"}}, nil
	case crd != nil && !isMadeFor(crd, b) && (!named || isMade(crd)):
		return judgement{refusal: &refusal{reasonNotOurs, notOurs(b, crd)}}, nil
	case crd != nil && !isMadeFor(crd, b) && !allows(crd, b.Name):
		return judgement{gvr: gvrOf(crd), refusal: &refusal{reasonConsent, fmt.Sprintf(
			"spec.type.crd: the CustomResourceDefinition %[1]s does not allow this Blueprint to serve its type: to allow it, run kubectl annotate crd %[1]s %[2]s=%[3]s --overwrite",
			name, allowedKey, b.Name)}}, nil
	}
	if refused, err := p.overBudget(b); err != nil || refused != nil {
		out := judgement{refusal: refused}
		if crd != nil {
			out.gvr = gvrOf(crd) // what was served before remains
		}
		return out, err
	}
	var problems blueprint.Problems
	options := blueprint.Options{SchemaFor: f.schemaFor, Children: p.options.childPolicy(), IsNamespaced: func(gvk schema.GroupVersionKind) (namespaced, known bool) {
		mapping := f.kinds[gvk]
		return mapping != nil && mapping.Scope.Name() == meta.RESTScopeNameNamespace, mapping != nil
	}}
	if named {
		options.CRD = crd
	}
	p.compiling.Lock()
	compiled, err := blueprint.Compile(b, options)
	p.compiling.Unlock()
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
		out.schema = schemaDigest(out.definition)
		if refused := refuseIncompatible(b, crd, out.definition, out.schema); refused != nil {
			return judgement{gvr: out.gvr, refusal: refused}, nil
		}
	}
	if !out.gvr.Empty() {
		revision, err := revisionName(b)
		if err != nil {
			return judgement{}, err
		}
		out.program = &program{
			inputs: f.served(), blueprint: b.Name, generation: b.Generation, spec: b.Spec, revision: revision, gvr: out.gvr,
			compiled: compiled, kinds: children, mergesConditions: rules.mergesConditions,
			definition: out.definition, schema: out.schema,
		}
	}
	return out, nil
}

// notOurs explains that a definition exists that was not created for the Blueprint.
func notOurs(b *blueprint.Blueprint, crd *apiextensionsv1.CustomResourceDefinition) string {
	if !isMade(crd) {
		return fmt.Sprintf("spec.type: the CustomResourceDefinition %[1]s exists and was not created by the platform: "+
			"to serve its type as it is, name it with spec.type.crd and allow it: kubectl annotate crd %[1]s %[2]s=%[3]s", crd.Name, allowedKey, b.Name)
	}
	return fmt.Sprintf("spec.type: the CustomResourceDefinition %[1]s was created for Blueprint %[2]q (annotation %[3]s), and its type is reserved for a "+
		"Blueprint of that name: to serve it with another, name it with spec.type.crd and release it: kubectl annotate crd %[1]s %[3]s- %[4]s- %[5]s=%[6]s --overwrite",
		crd.Name, crd.Annotations[madeForKey], madeForKey, madeByKey, allowedKey, b.Name)
}
