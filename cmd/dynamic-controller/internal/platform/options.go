package platform

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// Options is what an operator decides for the whole platform.
type Options struct {
	// Namespace is the platform's own namespace. Its contents are trusted like the operator. It is required.
	Namespace string
	// AllowChildKinds lists restricted kinds that templates can create: see blueprint.CheckRestrictedKind.
	AllowChildKinds []string
	// AllowChildNamespaces lists patterns of protected namespaces in which templates can create objects. Namespace
	// and the kube-* namespaces are protected.
	AllowChildNamespaces []string
	// MaxBlueprintMemory is the maximum estimated memory of all Blueprints together, in bytes. 0 means no limit.
	MaxBlueprintMemory int64
}

// validate reports every invalid option, by the flag that sets it.
func (o Options) validate() error {
	var errs []error
	for _, problem := range validation.IsDNS1123Label(o.Namespace) {
		errs = append(errs, fmt.Errorf("invalid --namespace %q: %s", o.Namespace, problem))
	}
	for _, kind := range o.AllowChildKinds {
		if err := blueprint.CheckRestrictedKind(kind); err != nil {
			errs = append(errs, fmt.Errorf("invalid --%s %q: %w", blueprint.AllowChildKindsFlag, kind, err))
		}
	}
	for _, pattern := range o.AllowChildNamespaces {
		if err := blueprint.CheckNamespacePattern(pattern); err != nil {
			errs = append(errs, fmt.Errorf("invalid --%s %q: %w", blueprint.AllowChildNamespacesFlag, pattern, err))
		}
	}
	if o.MaxBlueprintMemory < 0 {
		errs = append(errs, errors.New("--max-blueprint-memory must not be negative"))
	}
	return errors.Join(errs...)
}

// childPolicy limits what templates can create.
func (o Options) childPolicy() blueprint.ChildPolicy {
	return blueprint.ChildPolicy{OwnNamespace: o.Namespace, Kinds: o.AllowChildKinds, Namespaces: o.AllowChildNamespaces}
}
