package restmapper

import (
	"encoding/json"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// serveLegacy answers as an API server, or a proxy before one, that knows no aggregated discovery.
func serveLegacy(api *fakeAPI, groups ...string) {
	answer := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v)
		}
	}
	list := metav1.APIGroupList{}
	for _, group := range groups {
		v := metav1.GroupVersionForDiscovery{GroupVersion: group + "/v1", Version: "v1"}
		list.Groups = append(list.Groups, metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
	}
	api.setAlone("/api", answer(metav1.APIVersions{Versions: []string{"v1"}}))
	api.setAlone("/apis", answer(list))
}

// Without aggregated discovery each version is asked for by itself, but not those of CRDs. One that fails leaves the
// others alone, and is tried again.
func TestM2_WithoutAggregatedDiscovery(t *testing.T) {
	r := newRunning(t, WithPollPeriod(pollSoon))
	serveLegacy(r.api, "apps", "broken.example.com", widget.Group)
	r.api.setAlone("/api/v1", serveVersion("v1", "Pod"))
	r.api.setAlone("/apis/apps/v1", serveVersion("apps/v1", "Deployment"))
	r.api.setAlone("/apis/broken.example.com/v1", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no backend", http.StatusServiceUnavailable)
	})
	r.api.setCRD(widget.Group, widget.Kind, "v1")
	r.start()
	r.waitFor(pod)
	r.waitFor(widget)
	if mapping := r.waitFor(schema.GroupKind{Group: "apps", Kind: "Deployment"}); mapping.Resource.Resource != "deployments" {
		t.Errorf("mapped to %v", mapping)
	}
	r.eventually("the failure is told", func() bool { return r.Errors()["broken.example.com"] != nil })
	if errs := r.Errors(); len(errs) != 1 {
		t.Errorf("others fail too: %v", errs)
	}
	broken := schema.GroupKind{Group: "broken.example.com", Kind: "Thing"}
	r.api.setAlone("/apis/broken.example.com/v1", serveVersion("broken.example.com/v1", "Thing"))
	r.waitFor(broken)
	r.eventually("nothing fails", func() bool { return len(r.Errors()) == 0 })

	// It is polled like the other document, and one that fails again keeps its answer.
	r.api.setAlone("/apis/apps/v1", serveVersion("apps/v1", "ReplicaSet"))
	r.waitFor(schema.GroupKind{Group: "apps", Kind: "ReplicaSet"})
	r.api.setAlone("/apis/broken.example.com/v1", http.NotFound)
	r.eventually("the failure is told", func() bool { return r.Errors()["broken.example.com"] != nil })
	r.waitFor(broken)
	serveLegacy(r.api, "apps")
	r.eventually("a group that is not listed any more is gone", r.hasNot(broken))
	if n := r.api.requests("/apis/" + widget.Group + "/v1"); n > 0 {
		t.Errorf("%d requests for a CRD's version", n)
	}
}

// A server that is mended answers with the other kind of document, which counts at once.
func TestM2_AggregatedDiscoveryAppears(t *testing.T) {
	r := newRunning(t, WithPollPeriod(pollSoon))
	serveLegacy(r.api, "apps")
	r.api.setAlone("/api/v1", serveVersion("v1", "Pod"))
	r.api.setAlone("/apis/apps/v1", serveVersion("apps/v1", "ReplicaSet"))
	r.start()
	r.waitFor(schema.GroupKind{Group: "apps", Kind: "ReplicaSet"})
	r.api.setAlone("/api", nil)
	r.api.setAlone("/apis", nil)
	r.waitFor(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	r.eventually("what was before is gone", r.hasNot(schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}))
	r.waitFor(pod)
}
