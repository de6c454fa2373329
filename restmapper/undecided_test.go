package restmapper

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

const (
	noMatch   = "NoMatch"
	undecided = "discovery failed"
	found     = "found"
)

// outcomeOf returns the outcome of a lookup, given its error.
func outcomeOf(err error) string {
	groups, isFailed := discovery.GroupDiscoveryFailedErrorGroups(err)
	switch {
	case err == nil:
		return found
	case isFailed && len(groups) > 0 && !meta.IsNoMatchError(err):
		return undecided
	case !isFailed && meta.IsNoMatchError(err):
		return noMatch
	}
	return err.Error()
}

// lookupsByName returns the errors of all lookups of a resource by its name.
func lookupsByName(m *Mapper, resource schema.GroupVersionResource) map[string]error {
	errs := map[string]error{}
	_, errs["KindFor"] = m.KindFor(resource)
	_, errs["KindsFor"] = m.KindsFor(resource)
	_, errs["ResourceFor"] = m.ResourceFor(resource)
	_, errs["ResourcesFor"] = m.ResourcesFor(resource)
	return errs
}

// exactLookups returns the errors of all lookups in a group that expand nothing. The resource is the lower-case plural
// of the kind.
func exactLookups(m *Mapper, kind schema.GroupVersionKind) map[string]error {
	gk := kind.GroupKind()
	errs := map[string]error{}
	_, errs["RESTMapping"] = m.RESTMapping(gk, kind.Version)
	_, errs["RESTMappings"] = m.RESTMappings(gk, kind.Version)
	if kind.Version != "" {
		_, errs["RESTMapping with another version"] = m.RESTMapping(gk, "v7", kind.Version)
		_, errs["Verbs"] = m.Verbs(resourceOf(kind))
	}
	return errs
}

func resourceOf(kind schema.GroupVersionKind) schema.GroupVersionResource {
	return kind.GroupVersion().WithResource(strings.ToLower(kind.Kind) + "s")
}

func (r *running) expectLookups(kind schema.GroupVersionKind, want string) {
	r.Helper()
	r.expectErrors(exactLookups(r.Mapper, kind), kind, want)
	r.expectErrors(lookupsByName(r.Mapper, resourceOf(kind)), kind, want)
}

func (r *running) expectErrors(errs map[string]error, of any, want string) {
	r.Helper()
	for lookup, err := range errs {
		if got := outcomeOf(err); got != want {
			r.Errorf("%s of %v: got %q, want %q: %v", lookup, of, got, want, err)
		}
	}
}

func TestLookups_FailedDiscoveryOfAGroupIsNotANoMatch(t *testing.T) {
	inMemory(t, func(r *running) {
		path := "/apis/" + metric.Group + "/v1"
		r.api.setGroupAs(metric.Group, "v1", "", "Stale")
		r.api.handle(path, serveStatus(http.StatusServiceUnavailable))
		r.start()
		r.waitFor(pod)
		unknown := schema.GroupKind{Group: metric.Group, Kind: "Unknown"}
		for _, gk := range []schema.GroupKind{metric, unknown} {
			r.expectLookups(gk.WithVersion("v1"), undecided)
			r.expectLookups(gk.WithVersion(""), undecided)
			r.expectErrors(exactLookups(r.Mapper, gk.WithVersion("v2")), gk, noMatch)
		}
		// A short name is expanded in all versions of a group, and in all groups with the prefix.
		for _, resource := range []schema.GroupVersionResource{
			{Group: metric.Group, Version: "v2", Resource: "ms"}, {Group: metric.Group, Resource: "ms"},
			{Group: "metrics", Resource: "ms"}, {Group: "metrics", Resource: "metrics"},
			{Group: "metrics", Version: "v1", Resource: "ms"},
		} {
			r.expectErrors(lookupsByName(r.Mapper, resource), resource, undecided)
		}
		other := schema.GroupVersionResource{Group: "metrics.other", Resource: "ms"}
		r.expectErrors(lookupsByName(r.Mapper, other), other, noMatch)
		r.expectLookups(schema.GroupVersionKind{Group: "other.example.com", Version: "v1", Kind: "Metric"}, noMatch)
		r.expectLookups(deployment.WithVersion("v1"), found)
		if _, err := r.KindFor(schema.GroupVersionResource{Resource: "metrics"}); outcomeOf(err) != noMatch {
			t.Errorf("without a group: got error %v, want a NoMatch error", err)
		}
		if mapping, err := r.RESTMapping(schema.GroupKind{Kind: "Metric"}); outcomeOf(err) != noMatch {
			t.Errorf("in the core group: got %v, error %v, want a NoMatch error", mapping, err)
		}

		r.api.handle(path, serveVersion(metric.Group+"/v1", metric.Kind))
		r.waitFor(metric)
		r.expectLookups(metric.WithVersion("v1"), found)
		r.expectLookups(unknown.WithVersion("v1"), noMatch)
	})
}

// A version that fails after it has been read can serve other kinds than before.
func TestLookups_FailingVersionKeepsItsKindsAndRulesOutNoOthers(t *testing.T) {
	inMemory(t, func(r *running) {
		r.pollPeriod = 10 * time.Second
		r.api.handle("/apis/apps/v1", serveStatus(http.StatusServiceUnavailable))
		r.start()
		r.waitFor(deployment)
		unknown := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Unknown"}
		r.expectLookups(unknown, noMatch)
		r.api.setGroupAs("apps", "v1", "", "Stale")
		r.eventually("the failure is reported", r.fails(SourceDiscovery, "apps"))
		r.expectLookups(deployment.WithVersion("v1"), found)
		r.expectLookups(unknown, undecided)
		r.api.handle("/apis/apps/v1", serveVersion("apps/v1", "Deployment")) // the resources have not changed
		r.eventually("the failure is no longer reported", r.hasNoErrors)
		r.expectLookups(unknown, noMatch)
	})
}

func TestLookups_VersionThatHasNotBeenReadIsNotANoMatch(t *testing.T) {
	inMemory(t, func(r *running) {
		r.start()
		r.waitFor(pod)
		path := "/apis/metrics.example.com/v1"
		r.api.handle(path, serveNothing)
		r.expectLookups(metric.WithVersion("v1"), noMatch)
		r.api.setService("v1."+metric.Group, metricService(), "")
		synctest.Wait() // the request is in progress
		r.expectLookups(metric.WithVersion("v1"), undecided)
		r.api.deleteService("v1." + metric.Group)
		synctest.Wait()
		r.expectLookups(metric.WithVersion("v1"), noMatch)
	})
}

func TestLookups_ReturnTheNewestErrorOfAGroup(t *testing.T) {
	inMemory(t, func(r *running) {
		path := "/apis/metrics.example.com/v1"
		r.api.handle(path, serveStatus(http.StatusServiceUnavailable))
		r.api.setService("v1."+metric.Group, metricService(), "")
		r.start()
		r.waitFor(pod)
		r.api.handle(path, serveStatus(http.StatusBadGateway))
		time.Sleep(2 * maxVersionDelay)
		_, err := r.RESTMapping(metric)
		groups, _ := discovery.GroupDiscoveryFailedErrorGroups(err)
		reason := groups[schema.GroupVersion{Group: metric.Group, Version: "v1"}]
		var status *statusError
		if !errors.As(reason, &status) || status.status != http.StatusText(http.StatusBadGateway) {
			t.Errorf("got error %v, reason %v", err, reason)
		}
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		_, err = r.WaitForMapping(ctx, metric)
		if outcomeOf(err) != undecided || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("WaitForMapping: got error %v", err)
		}
	})
}

// metricService returns the spec of an APIService that belongs to another server.
func metricService() map[string]any {
	return map[string]any{
		"group": metric.Group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
		"service": map[string]any{"name": "m", "namespace": "n"},
	}
}
