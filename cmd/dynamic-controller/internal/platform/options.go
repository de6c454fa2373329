package platform

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Options is what an operator decides for the whole platform.
type Options struct {
	// Namespace is the platform's own namespace. Its contents are trusted like the operator. It is required.
	Namespace string
}

// validate reports every invalid option, by the flag that sets it.
func (o Options) validate() error {
	var errs []error
	for _, problem := range validation.IsDNS1123Label(o.Namespace) {
		errs = append(errs, fmt.Errorf("invalid --namespace %q: %s", o.Namespace, problem))
	}
	return errors.Join(errs...)
}
