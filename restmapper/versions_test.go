package restmapper

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// An APIService can be replaced while its version is being read. The response then belongs to the old APIService.
func TestM2_ResponseForARemovedAPIServiceIsDiscarded(t *testing.T) {
	inMemory(t, func(r *running) {
		release := make(chan struct{})
		path := "/apis/metrics.example.com/v1"
		r.api.handle(path, func(w http.ResponseWriter, req *http.Request) {
			<-release
			serveVersion("metrics.example.com/v1", "Old")(w, req)
		})
		spec := map[string]any{
			"group": metric.Group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
			"service": map[string]any{"name": "m", "namespace": "n"},
		}
		r.start()
		r.waitFor(pod)
		r.api.setService("v1."+metric.Group, spec, "")
		synctest.Wait() // the first request is in progress
		r.api.deleteService("v1." + metric.Group)
		r.api.setService("v1."+metric.Group, spec, "")
		synctest.Wait()
		r.api.handle(path, serveVersion("metrics.example.com/v1", "Metric"))
		close(release)
		r.waitFor(metric)
		if !r.hasNot(schema.GroupKind{Group: metric.Group, Kind: "Old"})() {
			t.Error("a kind of the removed APIService is mapped")
		}
	})
}

// If a request for a version is unanswered when Run returns, the next Run repeats the request.
func TestM2_NextRunReadsRemainingVersions(t *testing.T) {
	inMemory(t, func(r *running) {
		r.pollPeriod = 24 * time.Hour
		path := "/apis/metrics.example.com/v1"
		r.api.handle(path, serveNothing)
		r.start()
		r.waitFor(pod)
		r.api.setService("v1."+metric.Group, map[string]any{
			"group": metric.Group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
			"service": map[string]any{"name": "m", "namespace": "n"},
		}, "")
		synctest.Wait() // the request is in progress
		r.stop()
		r.api.handle(path, serveVersion("metrics.example.com/v1", "Metric"))
		r.start()
		r.waitFor(metric)
	})
}

// While a version has an APIService, it does not belong to the CRD that claims it.
func TestM3_APIServiceTakesOverAVersionFromACRD(t *testing.T) {
	inMemory(t, func(r *running) {
		gv := schema.GroupVersion{Group: widget.Group, Version: "v1"}
		name, path := "v1."+gv.Group, "/apis/"+gv.String()
		other := schema.GroupKind{Group: gv.Group, Kind: "Other"}
		spec := map[string]any{
			"group": gv.Group, "version": gv.Version, "groupPriorityMinimum": 100, "versionPriority": 10,
			"service": map[string]any{"name": "m", "namespace": "n"},
		}
		r.api.setCRD(widget.Group, widget.Kind, "v1")
		r.start()
		r.waitFor(widget)
		r.api.setService(name, spec, "")
		time.Sleep(time.Minute)
		if r.failure(SourceDiscovery, gv.Group) == nil || r.isMapped(widget) {
			t.Errorf("got errors %v; the kind of the CRD must not be mapped", r.Errors())
		}
		r.api.deleteService(name)
		synctest.Wait()
		if r.hasNot(widget)() || !r.hasNoErrors() {
			t.Errorf("got errors %v; the kind of the CRD must be mapped", r.Errors())
		}
		r.api.handle(path, serveVersion(gv.String(), other.Kind))
		r.api.setService(name, spec, "")
		synctest.Wait()
		r.api.deleteCRD(widget.Group, widget.Kind)
		time.Sleep(time.Minute)
		if r.hasNot(other)() || !r.hasNoErrors() {
			t.Errorf("got errors %v; the kind of the APIService must be mapped", r.Errors())
		}
		r.api.deleteService(name)
		synctest.Wait()
		if !r.hasNot(other)() || !r.hasNoErrors() {
			t.Errorf("got errors %v; no kind should be mapped", r.Errors())
		}
	})
}

// A changed APIService ends the backoff of its version.
func TestM2_ChangedAPIServiceIsReadImmediately(t *testing.T) {
	inMemory(t, func(r *running) {
		path := "/apis/metrics.example.com/v1"
		spec := func(backend string) map[string]any {
			return map[string]any{
				"group": metric.Group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
				"service": map[string]any{"name": backend, "namespace": "n"},
			}
		}
		r.api.handle(path, serveStatus(http.StatusServiceUnavailable))
		r.start()
		r.waitFor(pod)
		r.api.setService("v1."+metric.Group, spec("old"), "")
		for range 10 {
			time.Sleep(time.Minute)
			r.api.handle(path, serveVersion("metrics.example.com/v1", "Metric"))
			r.api.setService("v1."+metric.Group, spec("new"), "")
			changed := time.Now()
			r.waitFor(metric)
			if waited := time.Since(changed); waited > 0 {
				t.Errorf("the version was read %s after the change", waited)
			}
			r.api.handle(path, serveStatus(http.StatusServiceUnavailable))
			r.api.deleteService("v1." + metric.Group)
			r.api.setService("v1."+metric.Group, spec("old"), "")
		}
	})
}
