package acceptance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// Reasons for rejecting a Blueprint.
const (
	reasonInvalid      = "Invalid"
	reasonClaimed      = "TypeClaimed"
	reasonNotOwned     = "TypeNotOwned"
	reasonConsent      = "ConsentMissing"
	reasonStatus       = "TypeHasNoStatus"
	reasonPermission   = "PermissionMissing"
	reasonBudget       = "BudgetExceeded"
	reasonIncompatible = "IncompatibleSchema"
)

// dependsOnInputs reports whether the rejection depends only on the inputs of the validation. Rejections that depend on
// permissions, claims, consent or the memory budget must be computed again even if the inputs have not changed.
func (r *rejection) dependsOnInputs() bool {
	return !r.is(reasonPermission) && !r.is(reasonClaimed) && !r.is(reasonConsent) && !r.is(reasonBudget)
}

// validator decides whether Blueprints are accepted.
type validator struct {
	log     logr.Logger
	kinds   kindFinder
	schemas Schemas
	// crd returns a CustomResourceDefinition, or nil if it does not exist.
	crd     func(name string) (*apiextensionsv1.CustomResourceDefinition, error)
	claims  *claims
	reviews *accessReviews
	memory  *memoryBudget
	// identities resolves the names of ServiceAccounts.
	identities Identities
	// namespaces lists the namespaces to which instances and children are limited. An empty list means no limit.
	namespaces []string
	// disabled lists the features that Blueprints cannot use.
	disabled []Feature
	// compiling is held while a Blueprint is compiled. Compilation needs many times as much memory as its result, so only
	// one Blueprint is compiled at a time. Copies of the validator share the mutex.
	compiling *sync.Mutex
}

// budget returns a rejection if the memory budget is too small for a Blueprint's spec, and nil otherwise.
type budget func(*blueprint.Blueprint) (*rejection, error)

// validate validates a Blueprint and returns the missing permissions. before is the previous result. The Blueprint is
// compiled only if its inputs have changed since then, but permissions and claims are checked on every call. If exceeds
// returns a rejection, the spec is not compiled.
func (v *validator) validate(
	ctx context.Context, b *blueprint.Blueprint, own claim, before validation, exceeds budget,
) (validation, []permission, error) {
	in, err := v.inputsOf(ctx, b, own)
	if err != nil {
		return validation{}, nil, err
	}
	next := before
	if id := in.String(); before.inputs != id || before.rejection != nil && !before.rejection.dependsOnInputs() {
		if next, err = v.compile(b, in, exceeds); err != nil {
			return validation{}, nil, err
		}
		if next.inputs = id; before.inputs == id {
			next.refusal = before.refusal
		}
	}
	next.incomplete = in.incomplete
	var missing []permission
	if next.rejection == nil {
		if missing, err = v.reviews.missing(ctx, next.permissions); err != nil {
			return validation{}, nil, err
		}
		if len(missing) > 0 {
			next.rejection, next.revision, next.crd = rejectMissing(missing), nil, nil
		}
	}
	next.faulty = next.rejected() != nil
	holder, err := v.claims.holder(own, in.crd, next.faulty)
	if err != nil {
		return validation{}, nil, err
	}
	if holder != "" {
		next.rejection = &rejection{reasonClaimed,
			fmt.Sprintf("spec.type: %s is already claimed by Blueprint %s; %s", own.crd, holder, AnotherTypeAdvice)}
		next.gvr, next.revision, next.crd = schema.GroupVersionResource{}, nil, nil
		return next, nil, nil
	}
	return next, missing, nil
}

// validateType returns the type of a Blueprint that is being deleted. It reads only the caches, so that kinds that
// cannot be looked up, and permissions that cannot be reviewed, do not delay the deletion.
func (v *validator) validateType(
	b *blueprint.Blueprint, own claim, crd *apiextensionsv1.CustomResourceDefinition,
) (out validation, err error) {
	out.rejection = rejectType(b, crd)
	holder, err := v.claims.holder(own, crd, out.rejection != nil)
	switch {
	case err != nil:
		return validation{}, err
	case holder != "":
		out.rejection = &rejection{reasonClaimed, fmt.Sprintf("spec.type: %s is claimed by Blueprint %s", own.crd, holder)}
	case crd != nil && (out.rejection == nil || out.rejection.is(reasonConsent)):
		out.gvr = gvrOf(crd)
	}
	out.faulty = out.rejection != nil
	return out, nil
}

// compile validates a Blueprint, but does not check permissions and claims. If exceeds returns a rejection, the spec is
// not compiled.
func (v *validator) compile(b *blueprint.Blueprint, in inputs, exceeds budget) (validation, error) {
	crd, named := in.crd, b.Spec.Type.CRD != ""
	if rejected := rejectType(b, crd); rejected != nil {
		out := validation{rejection: rejected}
		if rejected.is(reasonConsent) {
			out.gvr = gvrOf(crd)
		}
		return out, nil
	}
	if rejected, err := exceeds(b); err != nil || rejected != nil {
		out := validation{rejection: rejected}
		if crd != nil {
			out.gvr = gvrOf(crd) // the served revision remains served
		}
		return out, err
	}
	compiled, problems, err := v.compileSpec(b, in)
	if err != nil {
		return validation{}, err
	}
	// Set the GVR even if the Blueprint is rejected, because deletions of instances are still processed.
	var out validation
	if !named && compiled != nil {
		out.crd = compiled.Definition()
		out.gvr = gvrOf(out.crd)
	} else if crd != nil {
		out.gvr = gvrOf(crd)
	}
	if len(problems) > 0 {
		return validation{gvr: out.gvr, rejection: &rejection{reasonInvalid, problems.Error()}}, nil
	}
	hasRevision := true
	if named && crd != nil {
		var problem string
		if hasRevision, problem = checkStatusSchema(crd); problem != "" {
			out.rejection = rejectStatus(problem)
			return out, nil
		}
	}
	account, rejected := v.identities.ServiceAccountName(b.Spec.ServiceAccountName)
	if rejected != nil {
		return validation{gvr: out.gvr, rejection: &rejection{rejected.Reason, rejected.Message}}, nil
	}
	resolved := *b
	resolved.Spec.ServiceAccountName = account // empty if the Blueprint runs as the platform
	b = &resolved
	childKinds, references := childrenOf(b, compiled, in), referencesOf(compiled, in)
	out.permissions = permissionsFor(b, out.gvr, childKinds, references, v.namespaces)
	if !named {
		out.digest = schemaDigest(out.crd)
		if rejected := rejectIncompatible(b, crd, out.crd, out.digest); rejected != nil {
			return validation{gvr: out.gvr, rejection: rejected}, nil
		}
	}
	if !out.gvr.Empty() {
		name, err := revisionName(b)
		if err != nil {
			return validation{}, err
		}
		out.revision = &servedRevision{
			inputs: in.served() + "\nas " + b.Spec.ServiceAccountName, generation: b.Generation,
			crd: out.crd, digest: out.digest,
			Revision: instances.Revision{
				Blueprint: b.Name, GVR: out.gvr, Spec: b.Spec, Compiled: compiled, Children: childKinds,
				References: references, Name: name, ReportsRevision: hasRevision,
			},
		}
	}
	return out, nil
}

func (v *validator) compileSpec(b *blueprint.Blueprint, in inputs) (*blueprint.Compiled, blueprint.Problems, error) {
	options := blueprint.Options{
		CRD: in.crd, SchemaFor: in.schemaFor, Namespaces: v.namespaces,
		IsNamespaced: func(gvk schema.GroupVersionKind) (namespaced, known bool) {
			mapping := in.mappings[gvk]
			return mapping != nil && mapping.Scope.Name() == meta.RESTScopeNameNamespace, mapping != nil
		},
	}
	v.compiling.Lock()
	compiled, err := blueprint.Compile(b, options)
	v.compiling.Unlock()
	var problems blueprint.Problems
	if err != nil && !errors.As(err, &problems) {
		return nil, nil, err
	}
	problems = slices.Concat(problems, unknownKinds(b, in), unsupportedKinds(b, in), disabledFeatures(b, v.disabled))
	return compiled, problems, nil
}

// rejectType returns a rejection if the Blueprint must not serve its type, and nil otherwise. crd is nil if the
// CustomResourceDefinition does not exist.
func rejectType(b *blueprint.Blueprint, crd *apiextensionsv1.CustomResourceDefinition) *rejection {
	if rejected := rejectMisrouted(b, crd); rejected != nil {
		return rejected
	}
	switch named := b.Spec.Type.CRD != ""; {
	case blueprint.DefinitionName(b) == blueprints.GroupResource().String():
		return &rejection{reasonInvalid, "spec.type: Blueprint is reserved for the platform"}
	case isOwnGroup(b):
		return &rejection{reasonInvalid, fmt.Sprintf(
			"spec.type: the API group %s and its subdomains are reserved for the platform; use another group", blueprints.Group)}
	case crd == nil || isReservedFor(crd, b):
		return nil
	case isCreatedByPlatform(crd):
		return &rejection{reasonNotOwned, fmt.Sprintf(
			"spec.type: the CustomResourceDefinition %s is reserved for Blueprint %q; %s",
			crd.Name, crd.Annotations[ownerNameAnnotation], TakeoverAdvice(crd.Name, b.Name))}
	case !named:
		return &rejection{reasonNotOwned, fmt.Sprintf(
			"spec.type: the CustomResourceDefinition %s exists and was not created by the platform; %s",
			crd.Name, ExistingTypeAdvice(crd.Name, b.Name))}
	case !allows(crd, b.Name):
		return &rejection{reasonConsent, fmt.Sprintf(
			"spec.type.crd: the CustomResourceDefinition %s does not allow this Blueprint; %s",
			crd.Name, ConsentAdvice(crd.Name, b.Name))}
	}
	return nil
}

// isOwnGroup reports whether the type of a Blueprint is in an API group of the platform. Permissions for such a group,
// and fields whose names begin with it, have a meaning for the platform.
func isOwnGroup(b *blueprint.Blueprint) bool {
	_, group, _ := strings.Cut(blueprint.DefinitionName(b), ".")
	return group == blueprints.Group || strings.HasSuffix(group, "."+blueprints.Group)
}
