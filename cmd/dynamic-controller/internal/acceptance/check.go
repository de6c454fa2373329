package acceptance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// Types provides the types that are served by a cluster or defined in files.
type Types struct {
	Mapper meta.RESTMapper
	// Verbs returns the verbs that are supported for a resource that the Mapper contains.
	Verbs   func(schema.GroupVersionResource) ([]string, error)
	Schemas Schemas
	// CRD returns a CustomResourceDefinition, or nil if it does not exist.
	CRD func(name string) (*apiextensionsv1.CustomResourceDefinition, error)

	// UnknownKindAdvice is appended to the message about an unknown kind.
	UnknownKindAdvice string
	// AllowUnknownKinds accepts templates with unknown kinds. They are not checked against a schema.
	AllowUnknownKinds bool
}

// Check compiles a Blueprint and returns the problems that would set its Accepted condition to False. It does not check
// permissions, ServiceAccounts, the memory budget or the claims of other Blueprints, because these checks require a
// running platform. The UID of the Blueprint must not be empty.
func Check(ctx context.Context, b *blueprint.Blueprint, types Types) (*blueprint.Compiled, blueprint.Problems, error) {
	v := &validator{
		kinds: kindFinder{types.Mapper, types.Verbs}, schemas: types.Schemas, crd: types.CRD, compiling: &sync.Mutex{},
	}
	in, err := v.inputsOf(ctx, b, claim{crd: blueprint.DefinitionName(b)})
	if err != nil {
		return nil, nil, err
	}
	if in.incomplete {
		return nil, nil, errors.New("the schemas of some kinds cannot be read from the API server")
	}
	in.unknownKindAdvice, in.allowUnknownKinds = types.UnknownKindAdvice, types.AllowUnknownKinds
	if rejected := rejectType(b, in.crd); rejected != nil {
		return nil, rejected.problems(), nil
	}
	compiled, problems, err := v.compileSpec(b, in)
	if err != nil || len(problems) > 0 || in.crd == nil {
		return compiled, problems, err
	}
	if b.Spec.Type.CRD != "" {
		_, problem := checkStatusSchema(in.crd)
		return compiled, rejectStatus(problem).problems(), nil
	}
	wanted := compiled.Definition()
	return compiled, rejectIncompatible(b, in.crd, wanted, schemaDigest(wanted)).problems(), nil
}

// rejectStatus returns a rejection for a problem found by checkStatusSchema, and nil if problem is empty.
func rejectStatus(problem string) *rejection {
	if problem == "" {
		return nil
	}
	return &rejection{reasonStatus, fmt.Sprintf("spec.type.crd: the status of instances cannot be written: %s", problem)}
}

// problems returns the message of the rejection as a problem with a path. It returns nil for a nil rejection.
func (r *rejection) problems() blueprint.Problems {
	if r == nil {
		return nil
	}
	path, reason, _ := strings.Cut(r.message, ": ")
	return blueprint.Problems{{Path: path, Reason: reason}}
}
