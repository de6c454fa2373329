package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/featuregate"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// features are the feature gates. If a gate is disabled, Blueprints that use the feature are rejected, including those
// that were accepted before. Their instances are not reconciled, but deletions are processed.
var features = []acceptance.Feature{acceptance.Collections, acceptance.ExternalReferences}

// newFeatureGate returns a feature gate with the defaults.
func newFeatureGate() featuregate.MutableFeatureGate {
	gate := featuregate.NewFeatureGate()
	specs := map[featuregate.Feature]featuregate.FeatureSpec{}
	for _, feature := range features {
		specs[featuregate.Feature(feature)] = featuregate.FeatureSpec{Default: true, PreRelease: featuregate.Beta}
	}
	if err := gate.Add(specs); err != nil {
		panic(err) // the features are constants
	}
	return gate
}

// newFeatures returns a feature gate with the given values. It returns an error for unknown names.
func newFeatures(values map[string]bool) (featuregate.MutableFeatureGate, error) {
	gate := newFeatureGate()
	var known []string
	for name := range gate.GetAll() {
		known = append(known, string(name))
	}
	slices.Sort(known)
	var unknown []error
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(known, name) {
			unknown = append(unknown, fmt.Errorf("unknown feature gate %s%s", name, blueprint.Suggest(name, known)))
		}
	}
	if len(unknown) > 0 {
		return gate, errors.New(strings.ReplaceAll(errors.Join(unknown...).Error(), "\n", ", "))
	}
	return gate, gate.SetFromMap(values)
}

// disabledFeatures returns the features whose gates are disabled.
func disabledFeatures(gate featuregate.FeatureGate) []acceptance.Feature {
	return slices.DeleteFunc(slices.Clone(features), func(feature acceptance.Feature) bool {
		return gate.Enabled(featuregate.Feature(feature))
	})
}

// featureMetric exports the feature gates under the metric name that Kubernetes components use.
type featureMetric struct{ featuregate.MutableFeatureGate }

var descFeatures = prometheus.NewDesc("kubernetes_feature_enabled",
	"The value is 1 if the feature gate is enabled, and 0 otherwise.", []string{"name", "stage"}, nil)

// Describe implements [prometheus.Collector].
func (m featureMetric) Describe(to chan<- *prometheus.Desc) { to <- descFeatures }

// Collect implements [prometheus.Collector].
func (m featureMetric) Collect(to chan<- prometheus.Metric) {
	for name, spec := range m.GetAll() {
		value := 0.0
		if m.Enabled(name) {
			value = 1
		}
		to <- gauge(descFeatures, value, string(name), string(spec.PreRelease))
	}
}
