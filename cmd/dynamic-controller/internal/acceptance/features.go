package acceptance

import (
	"fmt"
	"slices"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// Feature is a feature of Blueprints that operators can disable. It is the name of a feature gate.
type Feature string

const (
	// Collections allows resources with forEach, which can create many children for each instance.
	Collections Feature = "Collections"
	// ExternalReferences allows resources with externalRef, which can expose existing objects to tenants.
	ExternalReferences Feature = "ExternalReferences"
)

// disabledFeatures returns the problems of a Blueprint that uses disabled features.
func disabledFeatures(b *blueprint.Blueprint, disabled []Feature) (problems blueprint.Problems) {
	reject := func(feature Feature, uses bool, path string) {
		if uses && slices.Contains(disabled, feature) {
			problems = append(problems, blueprint.Problem{
				Path: path, Reason: fmt.Sprintf("is disabled by the platform's feature gate %s", feature),
			})
		}
	}
	for i, r := range b.Spec.Resources {
		path := fmt.Sprintf("spec.resources[%d].", i)
		reject(Collections, len(r.ForEach) > 0, path+"forEach")
		reject(ExternalReferences, r.ExternalRef != nil, path+"externalRef")
	}
	return problems
}
