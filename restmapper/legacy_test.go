package restmapper

import (
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

var thing = schema.GroupKind{Group: "broken.example.com", Kind: "Thing"}

func TestM2_LegacyDiscoveryReadsEachVersion(t *testing.T) {
	r := newRunning(t, pollEvery(pollSoon))
	r.api.serveLegacy("apps", thing.Group, widget.Group)
	r.api.handle("/apis/broken.example.com/v1", serveStatus(http.StatusServiceUnavailable))
	r.api.setCRD(widget.Group, widget.Kind, "v1")
	r.start()
	r.waitFor(pod)
	r.waitFor(widget)
	if mapping := r.waitFor(deployment); mapping.Resource.Resource != "deployments" {
		t.Errorf("got mapping %v", mapping)
	}
	r.eventually("the failure is reported", r.fails(SourceDiscovery, thing.Group))
	if errs := r.Errors(); len(errs) != 1 {
		t.Errorf("got errors %v, want one", errs)
	}
	r.api.handle("/apis/broken.example.com/v1", serveVersion("broken.example.com/v1", "Thing"))
	r.waitFor(thing)
	r.eventually("the failure is no longer reported", r.hasNoErrors)

	r.api.handle("/apis/apps/v1", serveVersion("apps/v1", "ReplicaSet"))
	r.waitFor(schema.GroupKind{Group: "apps", Kind: "ReplicaSet"})
	r.api.handle("/apis/broken.example.com/v1", http.NotFound)
	r.eventually("the failure is reported", r.fails(SourceDiscovery, thing.Group))
	r.waitFor(thing) // the last known result is still returned
	r.api.serveLegacy("apps")
	r.eventually("a group that is no longer listed is not mapped", r.hasNot(thing))
	if n := r.api.requests("/apis/" + widget.Group + "/v1"); n > 0 {
		t.Errorf("%d requests for the version of a CRD", n)
	}
}

func TestM2_AggregatedDiscoveryReplacesLegacyDiscovery(t *testing.T) {
	r := newRunning(t, pollEvery(pollSoon))
	r.api.serveLegacy("apps")
	r.api.handle("/apis/apps/v1", serveVersion("apps/v1", "ReplicaSet"))
	r.start()
	r.waitFor(schema.GroupKind{Group: "apps", Kind: "ReplicaSet"})
	r.api.handle("/api", nil)
	r.api.handle("/apis", nil)
	r.waitFor(deployment)
	r.eventually("a resource of the old document is not mapped",
		r.hasNot(schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}))
	r.waitFor(pod)
}

func TestM2_LegacyDiscoveryBacksOffForFailingVersion(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.serveLegacy("apps", thing.Group)
		r.api.handle("/apis/broken.example.com/v1", serveStatus(http.StatusServiceUnavailable))
		r.start()
		r.waitFor(deployment)
		time.Sleep(time.Hour)
		const polls = 16 // with a period of 5 minutes or 20% less, and one check after the start
		for path, most := range map[string]int{"/apis": polls, "/apis/apps/v1": polls, "/apis/broken.example.com/v1": 150} {
			if n := r.api.requests(path); n > most {
				t.Errorf("%d requests for %s within an hour", n, path)
			}
		}
		if n := r.logs.count("Discovery failed", thing.Group); n != 1 {
			t.Errorf("the failure has been logged %d times, want once", n)
		}
		r.api.handle("/apis/broken.example.com/v1", serveVersion("broken.example.com/v1", "Thing"))
		r.waitFor(thing)
	})
}

func TestM2_LegacyDiscoverySyncsWithoutHangingVersions(t *testing.T) {
	inMemory(t, func(r *running) {
		began := time.Now()
		r.api.serveLegacy("a.example.com", thing.Group, "apps")
		r.api.handle("/apis/a.example.com/v1", serveNothing)
		r.api.handle("/apis/broken.example.com/v1", serveNothing)
		r.start()
		r.waitFor(deployment)
		if waited := time.Since(began); waited > firstReadTimeout+time.Second {
			t.Errorf("synced after %s", waited)
		}
		r.waitFor(pod)
		r.api.handle("/apis/broken.example.com/v1", serveVersion("broken.example.com/v1", "Thing"))
		r.waitFor(thing)
		r.eventually("a version that hangs is reported", r.fails(SourceDiscovery, "a.example.com"))
	})
}

func TestM2_LegacyDiscoverySyncsWhenAllVersionsHaveBeenRead(t *testing.T) {
	inMemory(t, func(r *running) {
		began := time.Now()
		r.api.serveLegacy("apps")
		r.api.handle("/apis/apps/v1", func(w http.ResponseWriter, req *http.Request) {
			time.Sleep(time.Second)
			serveVersion("apps/v1", "Deployment")(w, req)
		})
		r.start()
		r.waitFor(pod)
		if _, err := r.RESTMapping(deployment); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("synced after %s without a version: %v", time.Since(began), err)
		}
	})
}

// A mapper that is stopped while it waits for versions has not synced.
func TestM2_StoppedMapperDoesNotSyncWithoutVersionsThatHang(t *testing.T) {
	inMemory(t, func(r *running) {
		r.api.serveLegacy("apps")
		r.api.handle("/apis/apps/v1", serveNothing)
		r.start()
		time.Sleep(time.Second)
		r.stop()
		if r.HasSynced() || r.logs.count("REST mapper synced") > 0 {
			t.Error("the mapper has synced")
		}
		r.api.handle("/apis/apps/v1", serveVersion("apps/v1", "Deployment"))
		r.start()
		r.waitFor(pod)
		if _, err := r.RESTMapping(deployment); err != nil {
			t.Error(err)
		}
	})
}

// Once a CRD defines a version, the version is no longer read from discovery.
func TestM2_LegacyDiscoveryDoesNotWaitForAVersionThatACRDClaims(t *testing.T) {
	inMemory(t, func(r *running) {
		began := time.Now()
		r.api.serveLegacy("apps", widget.Group)
		r.api.handle("/apis/"+widget.Group+"/v1", serveNothing)
		r.start()
		time.Sleep(time.Second)
		r.api.setCRD(widget.Group, widget.Kind, "v1")
		r.waitFor(widget)
		if waited := time.Since(began); waited > 2*time.Second {
			t.Errorf("synced after %s", waited)
		}
	})
}
