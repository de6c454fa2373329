package acceptance

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// Verdict is the result of a review. The zero Verdict means that the Blueprint would be accepted.
type Verdict struct {
	// Reason and Message are those of the Accepted condition.
	Reason, Message string
	// Permanent reports whether the Blueprint can be accepted only after its spec changes. If it is false, the problem
	// depends on the state of the cluster or on the flags of the platform.
	Permanent bool
}

// Review reports whether a Blueprint would be accepted if it were stored now. It does not write anything. It returns an
// error if the Blueprint cannot be checked completely, for example because some schemas cannot be read.
func (c *Controller) Review(ctx context.Context, b *blueprint.Blueprint) (Verdict, error) {
	if !c.config.Mapper.HasSynced() {
		return Verdict{}, errors.New("the kinds of the cluster have not been read yet")
	}
	reviewed := *b
	if reviewed.UID == "" {
		// A Blueprint that has not been stored has no UID. Use a UID that no stored object can have.
		reviewed.UID = types.UID("review/" + b.Name)
	}
	b = &reviewed
	own := claimOf(b)
	v := c.definitions.validator.withCandidate(own)
	next, _, err := v.validate(ctx, b, own, validation{}, v.memory.reject)
	switch {
	case err != nil:
		return Verdict{}, err
	case next.incomplete:
		return Verdict{}, errors.New("the schemas of some kinds cannot be read from the API server")
	case next.rejection == nil:
		return Verdict{}, nil
	}
	verdict := Verdict{Reason: next.rejection.reason, Message: next.rejection.message}
	if next.rejection.is(reasonBudget) {
		return verdict, nil // compiling the spec could take too much memory
	}
	problems, err := v.permanentProblems(ctx, b, own)
	if err != nil || len(problems) == 0 {
		return verdict, err
	}
	if !next.rejection.is(reasonInvalid) {
		verdict.Reason, verdict.Message = reasonInvalid, problems.Error()
	}
	verdict.Permanent = true
	return verdict, nil
}

// withCandidate returns a copy of the validator that treats a Blueprint under review as if it were stored. The given
// claim of that Blueprint is included when the validator checks claims and the memory budget.
func (v *validator) withCandidate(own claim) *validator {
	next := *v
	next.claims = &claims{
		cache: v.claims.cache, registry: v.claims.registry, decoded: v.claims.decoded, candidate: &own,
	}
	next.memory = &memoryBudget{limit: v.memory.limit, claims: next.claims}
	return &next
}

// permanentProblems returns the problems that can be fixed only by changing the Blueprint. It validates the Blueprint
// as if the cluster had only built-in kinds, unknown kinds were allowed in templates, and --namespaces were not set.
// Other problems can disappear when CustomResourceDefinitions, aggregated APIs or flags change.
func (v *validator) permanentProblems(
	ctx context.Context, b *blueprint.Blueprint, own claim,
) (blueprint.Problems, error) {
	if rejected := rejectType(b, nil); rejected != nil {
		return rejected.problems(), nil
	}
	in, err := v.inputsOf(ctx, b, own)
	if err != nil {
		return nil, err
	}
	in.crd, in.allowUnknownKinds = nil, true
	for gvk := range in.mappings {
		if in.childCRDs[gvk] != nil || !scheme.Scheme.Recognizes(gvk) {
			in.mappings[gvk] = nil
			delete(in.childCRDs, gvk)
			delete(in.published, gvk)
		}
	}
	unrestricted := *v
	unrestricted.namespaces = nil
	_, problems, err := unrestricted.compileSpec(b, in)
	return problems, err
}
