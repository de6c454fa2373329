//go:build browser

package ui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// object is a JSON object.
type object = map[string]any

// hostile is text that would execute a script if it were inserted as HTML.
const hostile = `<script>window.attacked = 1</script><img src=x onerror="window.attacked = 1">`

// server serves the page, and a synthetic status. Each snapshot is one second later than the previous one.
type server struct {
	url  string
	stop func()

	types   int
	started time.Time // time at which the replica was started

	mu   sync.Mutex // guards the fields below
	n    int        // snapshots
	code int        // if not 0, the status code of responses
}

func newServer(t *testing.T, types int) *server {
	t.Helper()
	s := &server{types: types, started: time.Now().Add(-50 * time.Hour).Truncate(time.Second)}
	mux := http.NewServeMux()
	mux.Handle(Path, New())
	mux.HandleFunc("/status", s.serveStatus)
	listener := httptest.NewServer(mux)
	t.Cleanup(listener.Close)
	s.url, s.stop = listener.URL, func() {
		listener.CloseClientConnections()
		_ = listener.Listener.Close()
	}
	return s
}

// answer sets the status code of the following responses. If it is 0, they contain the status.
func (s *server) answer(code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.code = code
}

func (s *server) serveStatus(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.code != 0 {
		http.Error(w, "the answer of the server "+hostile, s.code)
		return
	}
	s.n++
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(synthetic(s.started, s.types, s.n))
}

// pick returns the first value for most i, and the others for some.
func pick(i int, values ...string) string {
	const each = 97
	if i%each == 0 {
		return values[1+i/each%(len(values)-1)]
	}
	return values[0]
}

// snapshot is a synthetic status.
type snapshot struct {
	n                         int
	now                       time.Time
	types, parked, blueprints []object
	states, blueprintStates   map[string]int
	sums                      map[string]int
}

func (s *snapshot) before(seconds int) string {
	return s.now.Add(-time.Duration(seconds) * time.Second).Format(time.RFC3339Nano)
}

// synthetic returns the n-th status of a replica with the given number of types. Each type has a Blueprint, and every
// third Blueprint has a resource of the next one's type. The first type and Blueprint contain hostile text.
func synthetic(started time.Time, types, n int) object {
	s := &snapshot{
		n: n, now: started.Add(50*time.Hour + time.Duration(n)*time.Second),
		types: []object{}, parked: []object{}, blueprints: []object{},
		states: map[string]int{}, blueprintStates: map[string]int{}, sums: map[string]int{},
	}
	for i := range types {
		s.addType(i)
		s.addBlueprint(i, types)
	}
	if types > 0 {
		s.addHostile()
	}
	return object{
		"apiVersion": "status.platform.example.com/v1alpha1", "kind": "ReplicaStatus",
		"time": s.now.Format(time.RFC3339Nano), "version": "v0.3.0", "started": started.Format(time.RFC3339),
		"leadership": object{"identity": "dynamic-controller-6c9f_8d1e", "leading": true, "term": 3,
			"leader": "dynamic-controller-6c9f_8d1e"},
		"caches": object{"synced": true},
		"summary": object{
			"types": s.states, "blueprints": s.blueprintStates, "objects": s.sums["objects"], "bytes": s.sums["bytes"],
			"failing": s.sums["failing"], "parked": len(s.parked),
			"queue": object{"live": s.sums["live"], "background": 0, "delayed": s.sums["failing"],
				"running": s.sums["running"], "oldestSeconds": 0.4},
			"reconciles": object{"success": s.sums["success"], "failure": s.sums["failure"]},
		},
		"types": s.types, "parked": object{"total": len(s.parked), "objects": s.parked}, "blueprints": s.blueprints,
		"mapper": object{"synced": true, "kinds": types + 80, "errors": []object{{
			"source": "Discovery", "groupVersion": "metrics.k8s.io/v1beta1", "since": s.before(400),
			"error": "the server is currently unable to handle the request " + hostile,
		}}},
	}
}

func gvrOf(i int) object {
	return object{"group": fmt.Sprintf("team%02d.example.com", i%40), "version": "v1",
		"resource": fmt.Sprintf("resource%04d", i), "kind": fmt.Sprintf("Resource%04d", i)}
}

func (s *snapshot) addType(i int) {
	entry := gvrOf(i)
	count := func(name string, n int) int {
		s.sums[name] += n
		return n
	}
	objects := count("objects", i*i%977)
	failing := count("failing", i%11/10)
	// The rate changes with time.
	success := 0
	for at := range min(s.n, 70) {
		success += i%17 + (at*at+i)%7
	}
	state := pick(i, "Synced", "Failing", "Syncing", "Forbidden", "NotFound", "Stopped")
	s.states[state]++
	for name, value := range (object{
		"blueprint": fmt.Sprintf("blueprint-%04d", i), "state": state, "since": s.before(i*37 + 5), "synced": true,
		"objects": objects, "bytes": count("bytes", objects*(900+i%700)), "watches": 3, "secondsTotal": float64(success) / 80,
		"failing": failing, "parked": i % 53 / 52,
		"queue": object{"live": count("live", i%7/6*(s.n*s.n%9)), "background": 0, "delayed": failing,
			"running": count("running", i%7/6), "oldestSeconds": float64(i%7/6) * 0.4},
		"reconciles": object{"success": count("success", success), "failure": count("failure", s.n*failing)},
	}) {
		entry[name] = value
	}
	if state != "Synced" && state != "Syncing" {
		entry["message"] = fmt.Sprintf("list %s: the server could not find the requested resource", entry["resource"])
	}
	s.types = append(s.types, entry)
	if i%53 == 52 {
		s.parked = append(s.parked, object{
			"group": entry["group"], "version": "v1", "resource": entry["resource"], "namespace": fmt.Sprint("shop-", i%9),
			"name": fmt.Sprint("flowers-", i), "failures": 5 + i%4, "since": s.before(i * 60),
			"error": fmt.Sprintf("apply deployment %d: admission webhook \"limits.example.com\" denied the request", i),
		})
	}
}

func (s *snapshot) addBlueprint(i, types int) {
	state := pick(i, "Served", "Rejected", "Waiting")
	s.blueprintStates[state]++
	resources := []object{
		{"id": "config", "apiVersion": "v1", "kind": "ConfigMap", "external": true},
		{"id": "deployment", "apiVersion": "apps/v1", "kind": "Deployment", "needs": []string{"config"}},
		{"id": "service", "apiVersion": "v1", "kind": "Service", "needs": []string{"deployment"}},
		{"id": "ingress", "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "needs": []string{"service", "config"},
			"collection": true},
	}
	if next := gvrOf(i + 1); i%3 != 2 && i+1 < min(types, 400) {
		resources = append(resources, object{"id": "nested", "apiVersion": fmt.Sprint(next["group"], "/v1"),
			"kind": next["kind"], "needs": []string{"config"}})
	}
	blueprint := object{
		"name": fmt.Sprintf("blueprint-%04d", i), "type": gvrOf(i), "state": state, "generation": 1 + i%5,
		"servedGeneration": 1 + i%5, "revision": fmt.Sprintf("blueprint-%04d-7f9c%04x", i, i*7919%65536),
		"resources": resources,
	}
	if state != "Served" {
		blueprint["reason"], blueprint["message"] = "ResourceInvalid", `spec.resources[1].template: unknown field "container"`
	}
	if i%10 == 3 {
		blueprint["olderRevisions"] = []string{fmt.Sprintf("blueprint-%04d-1111", i)}
		blueprint["rollout"] = object{"updated": 3, "total": 10, "stopped": false, "stalled": false}
	}
	s.blueprints = append(s.blueprints, blueprint)
}

// addHostile adds hostile text to all fields that can contain text from users.
func (s *snapshot) addHostile() {
	first, blueprint := s.types[0], s.blueprints[0]
	first["message"] = hostile
	first["failingWatches"] = []object{{
		"resource": "deployments.v1.apps", "state": "Forbidden", "message": hostile, "since": s.before(60),
	}}
	blueprint["reason"], blueprint["message"] = hostile, hostile
	blueprint["resources"].([]object)[0]["id"] = hostile
	s.parked = append([]object{{
		"group": first["group"], "version": "v1", "resource": first["resource"], "namespace": "shop", "name": hostile,
		"failures": 7, "error": "first line\nsecond line " + hostile, "since": s.before(12),
	}}, s.parked...)
}
