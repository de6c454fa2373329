package platform

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Options contains the operator's settings for the whole platform.
type Options struct {
	// Namespace is the platform's own namespace. Its contents are trusted as much as the operator. Namespace is required.
	Namespace string
	// DefaultServiceAccount is the name of the ServiceAccount that Blueprints without spec.serviceAccountName run as.
	DefaultServiceAccount string
	// AllowPlatformIdentity allows Blueprints without a ServiceAccount. They run as the platform itself.
	AllowPlatformIdentity bool
	// MaxBlueprintMemory is the maximum estimated memory of all Blueprints together, in bytes. 0 means no limit.
	MaxBlueprintMemory int64
}

// validate returns an error that lists all invalid options by the names of their flags.
func (o Options) validate() error {
	var errs []error
	for _, problem := range validation.IsDNS1123Label(o.Namespace) {
		errs = append(errs, fmt.Errorf("invalid --namespace %q: %s", o.Namespace, problem))
	}
	if o.MaxBlueprintMemory < 0 {
		errs = append(errs, errors.New("--max-blueprint-memory must not be negative"))
	}
	return errors.Join(errs...)
}
