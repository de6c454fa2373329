package statusclient

import (
	"strings"
	"testing"
	"time"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/status"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// hostile is a message that another user wrote.
const hostile = "no\x1b[2J\u009b permission\nNAME\tKIND\u202e"

func replica() *status.Replica {
	websites := status.Resource{Group: "shop.example.com", Version: "v1", Resource: "websites"}
	gardens := status.Resource{Version: "v1", Resource: "gardens"}
	return &status.Replica{
		Time: now, Started: now.Add(-time.Hour), Version: "v1",
		Leadership: status.Leadership{Identity: "pod_1", Leading: true, Term: 2, Leader: "pod_1"},
		Caches:     status.Caches{Synced: true}, Mapper: status.Mapper{Synced: true, Kinds: 80},
		Summary: status.Summary{
			Types: map[string]int{"Synced": 1, "Forbidden": 1}, Blueprints: map[string]int{"Served": 1, "Waiting": 0},
			Objects: 3, Bytes: 1536, Failing: 1, Parked: 12, Queue: status.Queue{Live: 1, OldestSeconds: 1.25},
			Reconciles: map[string]uint64{"success": 5},
		},
		Types: []status.Type{
			{Resource: gardens, State: "Forbidden", Message: hostile, Since: now.Add(-time.Minute)},
			{Resource: websites, Kind: "Website", Blueprint: "websites", State: "Synced", Since: now.Add(-time.Hour), Objects: 3,
				Bytes: 1536, Failing: 1, Parked: 12, Queue: status.Queue{Live: 1, Background: 2, Delayed: 3, OldestSeconds: 1.25},
				Reconciles: map[string]uint64{"success": 5, "failure": 1}, Watches: 2},
		},
		Parked: status.Parked{Total: 12, Objects: []status.ParkedObject{
			{Resource: websites, Namespace: "shop", Name: "flowers", Failures: 3, Error: strings.Repeat("x", 200), Since: now},
			{Resource: websites, Name: "global", Failures: 1, Error: hostile, Since: now},
		}},
	}
}

func TestPrint(t *testing.T) {
	const cleaned = "no?[2J? permission NAME KIND?"
	long := strings.Repeat("x", 97) + "..."
	r := replica()
	for name, test := range map[string]struct {
		print func(w *strings.Builder)
		want  string
	}{
		"status": {func(w *strings.Builder) { PrintStatus(w, r, false) }, `
Replica:      pod_1, version v1, started 60m ago
Leads:        yes, term 2
Caches:       synced
Types:        2: 1 Forbidden, 1 Synced
Blueprints:   1: 1 Served
Objects:      3 in 1.5 KiB, 1 failing, 12 parked
Queue:        1 live, 0 background, 0 delayed, 0 running, oldest 1.25s
Reconciles:   5: 5 success
Kinds:        80, 0 errors

Problems:
  Type gardens.v1: ` + cleaned + `
  Parked objects, which are not reconciled until they change: 12; run dynamic-controller parked
`},
		"types": {func(w *strings.Builder) { PrintTypes(w, r, false) }, `
NAME                           KIND      STATE       AGE   OBJECTS   FAILING   PARKED   QUEUED   MESSAGE
gardens.v1                     -         Forbidden   60s   0         0         0        0        ` + cleaned + `
websites.v1.shop.example.com   Website   Synced      60m   3         1         12       6
`},
		"parked": {func(w *strings.Builder) { PrintParked(w, &r.Parked, now, false) }, `
TYPE                           NAMESPACE   NAME      AGE   FAILURES   ERROR
websites.v1.shop.example.com   shop        flowers   0s    3          ` + long + `
websites.v1.shop.example.com   -           global    0s    1          ` + cleaned + `

and 10 more, which are not listed: a replica lists the newest ten of each type
`},
		"nothing parked": {func(w *strings.Builder) { PrintParked(w, &status.Parked{}, now, false) }, `
No objects are parked.
`},
	} {
		t.Run(name, func(t *testing.T) {
			var got strings.Builder
			test.print(&got)
			if want := strings.TrimPrefix(test.want, "\n"); got.String() != want {
				t.Errorf("got\n%s\nwant\n%s", got.String(), want)
			}
		})
	}
	var wide strings.Builder
	PrintParked(&wide, &r.Parked, now, true)
	PrintTypes(&wide, r, true)
	for _, want := range []string{strings.Repeat("x", 200), "1.5 KiB", "websites    Synced", "1.25s"} {
		if !strings.Contains(wide.String(), want) {
			t.Errorf("the wide output has no %q: %s", want, wide.String())
		}
	}
}

func TestProblems(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*status.Replica)
		want   string
	}{
		"none": {func(*status.Replica) {}, ""},
		"no leader": {func(r *status.Replica) { r.Leadership = status.Leadership{} },
			"No replica leads: nothing is reconciled"},
		"standby": {func(r *status.Replica) { r.Leadership.Leading = false }, ""},
		"caches":  {func(r *status.Replica) { r.Caches = status.Caches{Message: "cold"} }, "Caches: cold"},
		"mapper": {func(r *status.Replica) { r.Mapper.Synced = false },
			"Mapper: the kinds of the cluster have not been read yet"},
		"mapper error": {func(r *status.Replica) {
			r.Mapper.Errors = []status.MapperError{{Source: "Discovery", GroupVersion: "a/v1", Error: "down"}}
		}, "Mapper: Discovery a/v1: down"},
		"syncing type": {func(r *status.Replica) { r.Types[0].State = "Syncing" }, ""},
		"failing type": {func(r *status.Replica) { r.Types[0].State, r.Types[0].Message = "Failing", "down" },
			"Type gardens.v1: down"},
		"failing watch": {func(r *status.Replica) {
			r.Types[0].FailingWatches = []status.Watch{{Resource: "pods.v1", State: "Forbidden", Message: "no"}}
		}, "Type gardens.v1: pods.v1: Forbidden: no"},
		"rejected Blueprint": {func(r *status.Replica) {
			r.Blueprints = []status.Blueprint{{Name: "a", State: "Rejected", Reason: "Invalid", Message: "wrong"}}
		}, "Blueprint a: Invalid: wrong"},
		"waiting Blueprint": {func(r *status.Replica) {
			r.Blueprints = []status.Blueprint{{Name: "a", State: "Waiting"}}
		}, ""},
		"parked objects": {func(r *status.Replica) { r.Parked.Total = 2 },
			"Parked objects, which are not reconciled until they change: 2; run dynamic-controller parked"},
	} {
		r := replica()
		r.Types[0].State, r.Types[0].Message, r.Parked.Total = "Synced", "", 0
		test.change(r)
		if got := strings.Join(Problems(r), "; "); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
	var many []status.Blueprint
	for range 3 * mostProblems {
		many = append(many, status.Blueprint{State: "Rejected", Message: strings.Repeat("x", 1000)})
	}
	var short, wide strings.Builder
	r := &status.Replica{Blueprints: many}
	PrintStatus(&short, r, false)
	PrintStatus(&wide, r, true)
	if len(short.String()) > 3000 || !strings.Contains(short.String(), "and 23 more: use -o wide") ||
		strings.Count(wide.String(), "\n  Blueprint ") != len(many) {
		t.Errorf("got %s, wide: %d bytes", short.String(), len(wide.String()))
	}
}

func TestSelect(t *testing.T) {
	r := replica()
	other := status.Resource{Group: "other.example.com", Version: "v1", Resource: "websites"}
	r.Types = append(r.Types, status.Type{Resource: other, Kind: "Site", Parked: 1})
	r.Parked.Total++
	r.Parked.Objects = append(r.Parked.Objects, status.ParkedObject{Resource: other, Name: "first"})
	for _, test := range []struct {
		wanted        status.RetryRequest
		total, listed int
		problem       string
	}{
		{status.RetryRequest{}, 13, 3, ""},
		{status.RetryRequest{Type: "websites"}, 13, 3, ""},
		{status.RetryRequest{Type: "websites.shop.example.com"}, 12, 2, ""},
		{status.RetryRequest{Type: "Website"}, 12, 2, ""},
		{status.RetryRequest{Type: "gardens"}, 0, 0, ""},
		{status.RetryRequest{Type: "ponds"}, 0, 0, `"ponds": no served type has this name`},
		{status.RetryRequest{Type: "websites.shop.example.com", Namespace: "shop", Name: "flowers"}, 1, 1, ""},
		{status.RetryRequest{Type: "websites", Namespace: "shop", Name: "global"}, 1, 1, ""},
		{status.RetryRequest{Type: "websites.shop.example.com", Namespace: "other", Name: "flowers"}, 0, 0,
			"only 2 of 12 parked objects are listed, and websites.shop.example.com/flowers is not one of them"},
		{status.RetryRequest{Type: "site", Name: "second"}, 0, 0, ""},
	} {
		got, err := Select(r, test.wanted)
		if got.Total != test.total || len(got.Objects) != test.listed || (err == nil) != (test.problem == "") ||
			err != nil && !strings.Contains(err.Error(), test.problem) {
			t.Errorf("%+v: got %d of %d, error %v", test.wanted, len(got.Objects), got.Total, err)
		}
	}
	for name, want := range map[string]string{
		"websites": "websites", "site": "websites.v1.other.example.com", "ponds": "", "": "",
	} {
		if got, err := Resolve(r, name); got != want || (err == nil) != (want != "") {
			t.Errorf("Resolve(%q): got %q, error %v", name, got, err)
		}
	}
	r.Types[1].Kind = "Site"
	if got, err := Resolve(r, "Site"); err == nil || !strings.Contains(err.Error(), "several types") {
		t.Errorf("got %q, error %v", got, err)
	}
}

func TestComplete(t *testing.T) {
	r := replica()
	for word, want := range map[string]string{
		"":          "websites.shop.example.com",
		"websites/": "websites/flowers websites/global",
		"Website/f": "Website/flowers Website/global",
		"ponds/":    "",
	} {
		if got := strings.Join(Complete(r, word, "shop"), " "); got != want {
			t.Errorf("%q: got %q, want %q", word, got, want)
		}
	}
	if got := Complete(r, "websites/", "other"); len(got) != 1 {
		t.Errorf("got %q", got)
	}
}
