package platform

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Options contains the operator's settings for the whole platform.
type Options struct {
	// Namespace is the platform's own namespace. Its contents are trusted as much as the operator. Namespace is required.
	Namespace string
	// Namespaces are the namespaces to which instances and their children are limited. If it is nil, there is no limit.
	Namespaces []string
	// DefaultServiceAccount is the name of the ServiceAccount that Blueprints without spec.serviceAccountName run as.
	DefaultServiceAccount string
	// AllowPlatformIdentity allows Blueprints without a ServiceAccount. They run as the platform itself.
	AllowPlatformIdentity bool
	// MaxBlueprintMemory is the maximum estimated memory of all Blueprints together, in bytes. 0 means no limit.
	MaxBlueprintMemory int64
}

// AreNamespaces reports whether the names are at least one, different, and valid names of namespaces.
func AreNamespaces(names []string) bool {
	isInvalid := func(name string) bool { return len(validation.IsDNS1123Label(name)) > 0 }
	return len(names) > 0 && sets.New(names...).Len() == len(names) && !slices.ContainsFunc(names, isInvalid)
}

// validate returns an error that lists all invalid options by the names of their flags.
func (o Options) validate() error {
	var errs []error
	for _, problem := range validation.IsDNS1123Label(o.Namespace) {
		errs = append(errs, fmt.Errorf("invalid --namespace %q: %s", o.Namespace, problem))
	}
	if o.Namespaces != nil && !AreNamespaces(o.Namespaces) {
		errs = append(errs, fmt.Errorf("invalid --namespaces %q: must be different names of namespaces", o.Namespaces))
	}
	if o.MaxBlueprintMemory < 0 {
		errs = append(errs, errors.New("--max-blueprint-memory must not be negative"))
	}
	return errors.Join(errs...)
}
