package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
)

// testedKubernetes contains the versions of Kubernetes that the tests run on, without patch versions, from the oldest
// to the newest. The newest is the version in test/controlplane/go.mod, which all tests use. "make test-versions" uses
// the others, which are in test/versions/*/go.mod. The oldest is the minimum that the platform requires.
// TestServerVersion_ListsAgree compares the list with these files, the chart and the documentation.
var testedKubernetes = []string{"1.31", "1.34", "1.36", "1.37"}

// serverVersion is the version of the API server at the start of the process.
type serverVersion struct {
	text   string               // as reported by the server, for logs and metrics
	parsed *utilversion.Version // without the patch version, or nil if the version is unknown
}

// newServerVersion returns the version in the response of the API server. Providers append suffixes, as in
// v1.34.4-gke.1 and v1.34+, which are ignored. info is nil if the version cannot be read.
func newServerVersion(info *apiversion.Info) serverVersion {
	if info == nil {
		return serverVersion{text: "unknown"}
	}
	majorMinor := info.Major + "." + info.Minor
	parsed, err := utilversion.ParseMajorMinor(info.GitVersion)
	if err != nil {
		parsed, _ = utilversion.ParseMajorMinor(majorMinor)
	}
	return serverVersion{text: cmp.Or(info.GitVersion, strings.Trim(majorMinor, "."), "unknown"), parsed: parsed}
}

// isTested reports whether tests run on the version. The patch version is not compared.
func (v serverVersion) isTested() bool {
	for _, tested := range testedKubernetes {
		if v.parsed != nil && v.parsed.EqualTo(utilversion.MustParse(tested)) {
			return true
		}
	}
	return false
}

// check logs a warning if the platform was not tested with the version. It returns an error if the version is older
// than the minimum, unless allowUnsupported is set. An unknown version is not an error.
func (v serverVersion) check(log logr.Logger, allowUnsupported bool) error {
	minimum := testedKubernetes[0]
	log = log.WithValues("version", v.text, "tested", testedKubernetes)
	switch {
	case v.isTested():
	case v.parsed == nil:
		log.Info("Kubernetes version unknown")
	case !v.parsed.LessThan(utilversion.MustParse(minimum)):
		log.Info("Kubernetes version not tested")
	case allowUnsupported:
		log.Info("Kubernetes version not supported", "minimum", minimum)
	default:
		return fmt.Errorf("kubernetes %s is not supported: upgrade the cluster to %s or later, or set --%s", v.text,
			minimum, flagAllowUnsupportedKubernetes)
	}
	return nil
}

// metric returns a metric that reports whether tests run on the version.
func (v serverVersion) metric() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "dynamiccontroller_kubernetes_tested",
		Help: "The value is 1 if the platform was tested with the version of the API server, and 0 otherwise. The label " +
			"contains the version at the start of the process.",
		ConstLabels: prometheus.Labels{"version": v.text},
	})
	if v.isTested() {
		g.Set(1)
	}
	return g
}
