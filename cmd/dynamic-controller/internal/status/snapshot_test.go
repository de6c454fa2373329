package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/rollout"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/restmapper"
)

type mapper []restmapper.Error

func (m mapper) HasSynced() bool            { return true }
func (m mapper) Errors() []restmapper.Error { return m }

func newSources() *Sources {
	return &Sources{
		Leadership: func() replica.Status { return replica.Status{} },
		CheckCache: func() error { return nil },
		Types:      func() []dynamiccontroller.TypeStatus { return nil },
		Reconciles: &Reconciles{Metrics: dynamiccontroller.NoMetrics{}},
		Blueprints: func() []acceptance.Summary { return nil },
		Mapper:     mapper(nil),
		Kinds:      func() int64 { return 0 },
	}
}

var websites = schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "websites"}

// at returns a time on a fixed day.
func at(minute int) time.Time { return time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC) }

func TestSnapshot_DescribesTypesAndBlueprints(t *testing.T) {
	s := newSources()
	s.Version, s.Started = "v1", at(0)
	s.Leadership = func() replica.Status {
		return replica.Status{Leading: true, Term: 2, Leader: "a", Identity: "a"}
	}
	s.CheckCache = func() error { return errors.New("not listed yet") }
	deployments := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	s.Types = func() []dynamiccontroller.TypeStatus {
		return []dynamiccontroller.TypeStatus{
			{GVR: blueprint.GroupVersionResource, WatchStatus: dynamiccontroller.WatchStatus{
				State: dynamiccontroller.TypeSynced, Since: at(1), Synced: true, Objects: 2, Bytes: 10,
			}},
			{
				GVR: websites,
				WatchStatus: dynamiccontroller.WatchStatus{
					State: dynamiccontroller.TypeSynced, Since: at(2), Synced: true, Objects: 3, Bytes: 30,
					Replacement: &dynamiccontroller.ReplacementStatus{State: dynamiccontroller.TypeSyncing},
				},
				Live: 1, Background: 2, Delayed: 3, Running: 4, Oldest: 1500 * time.Millisecond, Failing: 5, Parked: 6,
				NewestParked: []dynamiccontroller.ParkedObject{
					{Key: "shop/flowers", Failures: 7, LastError: "one", Since: at(3)},
					{Key: "global", Failures: 8, LastError: "two", Since: at(4)},
				},
				Secondaries: []dynamiccontroller.SecondaryStatus{
					{WatchKey: dynamiccontroller.Owns(deployments).Key(), WatchStatus: dynamiccontroller.WatchStatus{
						State: dynamiccontroller.TypeForbidden, Message: "no", Since: at(5),
					}},
				},
			},
		}
	}
	for _, outcome := range []dynamiccontroller.Outcome{
		dynamiccontroller.OutcomeSuccess, dynamiccontroller.OutcomeSuccess, dynamiccontroller.OutcomeParked,
	} {
		s.Reconciles.Reconciled(dynamiccontroller.Reconcile{GVR: websites, Outcome: outcome, Took: time.Second})
	}
	s.Blueprints = func() []acceptance.Summary {
		return []acceptance.Summary{
			{Name: "rival", State: acceptance.StateRejected, Reason: "Claimed", Message: "taken", GVR: websites, Generation: 1},
			{
				Name: "websites", State: acceptance.StateServed, GVR: websites, Kind: "Website", Generation: 3,
				ServedGeneration: 3, Revision: "websites-1", Older: []string{"websites-0"},
				Progress: &rollout.Progress{Total: 3, Updated: 2, Stalled: true},
				Templates: []blueprint.Template{
					{ID: "config", GVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Reference: true},
					{ID: "web", GVK: deployments.GroupVersion().WithKind("Deployment"), Needs: []string{"config"}, Collection: true},
				},
			},
		}
	}
	s.Mapper = mapper{{
		Source: restmapper.SourceDiscovery, GroupVersion: schema.GroupVersion{Group: "metrics.k8s.io", Version: "v1"},
		Err: errors.New("unavailable"), Since: at(6),
	}}
	s.Kinds = func() int64 { return 80 }

	doc := s.Snapshot()
	doc.Time = at(9)
	got, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(document); string(got) != want {
		t.Errorf("got %s", got)
	}
}

func TestSnapshot_ListsAreNeverNull(t *testing.T) {
	data, err := json.Marshal(newSources().Snapshot())
	if err != nil || strings.Contains(string(data), "null") {
		t.Errorf("got %s, error %v", data, err)
	}
}

func TestSnapshot_IsBounded(t *testing.T) {
	const types, each, long = 2000, 10, 5000
	s := newSources()
	s.Types = func() (all []dynamiccontroller.TypeStatus) {
		for i := range types {
			one := dynamiccontroller.TypeStatus{
				GVR:         schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: fmt.Sprint(i)},
				WatchStatus: dynamiccontroller.WatchStatus{Message: strings.Repeat("é", long)},
				Parked:      each + 1,
			}
			for j := range each {
				one.NewestParked = append(one.NewestParked, dynamiccontroller.ParkedObject{
					Key: fmt.Sprint("default/", j), LastError: strings.Repeat("x", long), Since: at(0).Add(time.Duration(i)),
				})
			}
			for range 2 * MaxFailingWatches {
				one.Secondaries = append(one.Secondaries, dynamiccontroller.SecondaryStatus{
					WatchKey:    dynamiccontroller.Owns(websites).Key(),
					WatchStatus: dynamiccontroller.WatchStatus{State: dynamiccontroller.TypeFailing},
				})
			}
			all = append(all, one)
		}
		return all
	}
	s.Blueprints = func() []acceptance.Summary {
		return []acceptance.Summary{{
			Message: strings.Repeat("x", long), Older: make([]string, 2*MaxOlderRevisions),
			Templates: make([]blueprint.Template, 2*MaxResources),
		}}
	}
	s.Mapper = make(mapper, 2*MaxMapperErrors)
	for i := range s.Mapper.(mapper) {
		s.Mapper.(mapper)[i].Err = errors.New(strings.Repeat("x", long))
	}
	doc := s.Snapshot()
	if doc.Parked.Total != types*(each+1) || len(doc.Parked.Objects) != MaxParked ||
		doc.Parked.Objects[0].Resource.Resource != fmt.Sprint(types-1) {
		t.Errorf("got %d parked objects and %d details", doc.Parked.Total, len(doc.Parked.Objects))
	}
	if len(doc.Types) != types || len(doc.Types[0].FailingWatches) != MaxFailingWatches || doc.Types[0].Watches !=
		2*MaxFailingWatches || len(doc.Mapper.Errors) != MaxMapperErrors ||
		len(doc.Blueprints[0].Resources) != MaxResources || len(doc.Blueprints[0].OlderRevisions) != MaxOlderRevisions {
		t.Error("the document is not bounded")
	}
	for _, text := range []string{
		doc.Types[0].Message, doc.Parked.Objects[0].Error, doc.Blueprints[0].Message, doc.Mapper.Errors[0].Error,
	} {
		if len(text) > MaxMessageBytes || len(text) < MaxMessageBytes-utf8.UTFMax || !utf8.ValidString(text) {
			t.Errorf("got a text of %d bytes", len(text))
		}
	}
}

func TestReconciles_AreForgottenWithTheType(t *testing.T) {
	r := &Reconciles{Metrics: dynamiccontroller.NoMetrics{}}
	r.Reconciled(dynamiccontroller.Reconcile{GVR: websites, Outcome: dynamiccontroller.OutcomeSuccess, Took: time.Second})
	if counts, took := r.of(websites); counts["success"] != 1 || took != time.Second {
		t.Errorf("got %v in %s", counts, took)
	}
	r.Forget(websites)
	if counts, took := r.of(websites); len(counts) != 0 || took != 0 {
		t.Errorf("got %v in %s", counts, took)
	}
}

const document = `
{
 "apiVersion": "status.platform.example.com/v1alpha1",
 "kind": "ReplicaStatus",
 "time": "2026-01-02T03:09:00Z",
 "version": "v1",
 "started": "2026-01-02T03:00:00Z",
 "leadership": {
  "identity": "a",
  "leading": true,
  "term": 2,
  "leader": "a"
 },
 "caches": {
  "synced": false,
  "message": "not listed yet"
 },
 "summary": {
  "types": {
   "Synced": 2
  },
  "blueprints": {
   "Deleting": 0,
   "Rejected": 1,
   "Served": 1,
   "Unknown": 0,
   "Waiting": 0
  },
  "objects": 5,
  "bytes": 40,
  "failing": 5,
  "parked": 6,
  "queue": {
   "live": 1,
   "background": 2,
   "delayed": 3,
   "running": 4,
   "oldestSeconds": 1.5
  },
  "reconciles": {
   "parked": 1,
   "success": 2
  }
 },
 "types": [
  {
   "group": "platform.example.com",
   "version": "v1alpha1",
   "resource": "blueprints",
   "kind": "Blueprint",
   "state": "Synced",
   "since": "2026-01-02T03:01:00Z",
   "synced": true,
   "objects": 2,
   "bytes": 10,
   "failing": 0,
   "parked": 0,
   "queue": {
    "live": 0,
    "background": 0,
    "delayed": 0,
    "running": 0,
    "oldestSeconds": 0
   },
   "reconciles": {},
   "secondsTotal": 0,
   "watches": 0
  },
  {
   "group": "shop.example.com",
   "version": "v1",
   "resource": "websites",
   "kind": "Website",
   "blueprint": "websites",
   "state": "Synced",
   "since": "2026-01-02T03:02:00Z",
   "synced": true,
   "replacing": "Syncing",
   "objects": 3,
   "bytes": 30,
   "failing": 5,
   "parked": 6,
   "queue": {
    "live": 1,
    "background": 2,
    "delayed": 3,
    "running": 4,
    "oldestSeconds": 1.5
   },
   "reconciles": {
    "parked": 1,
    "success": 2
   },
   "secondsTotal": 3,
   "watches": 1,
   "failingWatches": [
    {
     "resource": "deployments.v1.apps",
     "state": "Forbidden",
     "message": "no",
     "since": "2026-01-02T03:05:00Z"
    }
   ]
  }
 ],
 "parked": {
  "total": 6,
  "objects": [
   {
    "group": "shop.example.com",
    "version": "v1",
    "resource": "websites",
    "name": "global",
    "failures": 8,
    "error": "two",
    "since": "2026-01-02T03:04:00Z"
   },
   {
    "group": "shop.example.com",
    "version": "v1",
    "resource": "websites",
    "namespace": "shop",
    "name": "flowers",
    "failures": 7,
    "error": "one",
    "since": "2026-01-02T03:03:00Z"
   }
  ]
 },
 "blueprints": [
  {
   "name": "rival",
   "type": {
    "group": "shop.example.com",
    "version": "v1",
    "resource": "websites"
   },
   "state": "Rejected",
   "reason": "Claimed",
   "message": "taken",
   "generation": 1,
   "resources": []
  },
  {
   "name": "websites",
   "type": {
    "group": "shop.example.com",
    "version": "v1",
    "resource": "websites",
    "kind": "Website"
   },
   "state": "Served",
   "reason": "Forbidden",
   "message": "deployments.v1.apps cannot be watched: no",
   "generation": 3,
   "servedGeneration": 3,
   "revision": "websites-1",
   "olderRevisions": [
    "websites-0"
   ],
   "rollout": {
    "updated": 2,
    "total": 3,
    "stopped": false,
    "stalled": true
   },
   "resources": [
    {
     "id": "config",
     "apiVersion": "v1",
     "kind": "ConfigMap",
     "external": true
    },
    {
     "id": "web",
     "apiVersion": "apps/v1",
     "kind": "Deployment",
     "needs": [
      "config"
     ],
     "collection": true
    }
   ]
  }
 ],
 "mapper": {
  "synced": true,
  "kinds": 80,
  "errors": [
   {
    "source": "Discovery",
    "groupVersion": "metrics.k8s.io/v1",
    "error": "unavailable",
    "since": "2026-01-02T03:06:00Z"
   }
  ]
 }
}
`
