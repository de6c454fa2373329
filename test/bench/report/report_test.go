package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// root is the root directory of the repository.
const root = "../../.."

func TestReport_FilesMatchTheSavedResults(t *testing.T) {
	files, err := makeReport(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
		} else if string(got) != want {
			t.Errorf("%s differs from the saved results: run make bench-report", name)
		}
	}
}

const sample = `goos: linux
cpu: A(R) CPU & more
cpus: 2
kubernetes: v1.37.1
growth-types: 8 workers, 10 types of 5 objects
note: types: controller-runtime-unstructured was not measured with 100 or more: one measurement took longer than 1m40s
BenchmarkGrowth/load=types/n=10/engine=ours-full-2	1	52.00 goroutines	2000000 heap-B	900000000 all-reconciled-ns
BenchmarkGrowth/load=types/n=10/engine=kro-2	1	25.00 goroutines	4000000 heap-B	1900000000 all-reconciled-ns
BenchmarkGrowth/load=types/n=100/engine=ours-full-2	1	412.0 goroutines	9000000 heap-B	2900000000 all-reconciled-ns
PASS
`

// platformSample contains results of BenchmarkPlatform, in the order of platformRows.
func platformSample() string {
	var b strings.Builder
	for engine, values := range map[string]string{
		"ours": "12.8e9 4.61e9 9.08e9 5.23 13e6 34e6 11e6 26e6 5.85e9 2.14 11e9 90.6e6",
		"kro":  "219.8e9 168.5e9 217.1e9 15 299e6 315e6 299e6 327e6 101.2e9 10 43.2e9 97.7e6",
	} {
		fmt.Fprintf(&b, "BenchmarkPlatform/engine=%s-2\t1", engine)
		for i, value := range strings.Fields(values) {
			fmt.Fprintf(&b, "\t%s %s", value, platformRows[i].unit)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func sampleRun(t *testing.T) *run {
	t.Helper()
	r, err := parse("sample", sample)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestParse(t *testing.T) {
	r := sampleRun(t)
	if r.settings["cpu"] != "A(R) CPU & more" || r.settings["kubernetes"] != "v1.37.1" {
		t.Errorf("got the settings %v", r.settings)
	}
	if len(r.notes) != 1 || len(r.points) != 3 {
		t.Errorf("got %d notes and %d points, want 1 and 3", len(r.notes), len(r.points))
	}
	s := r.load("types")
	if v, ok := s.value("ours-full", 100, "goroutines"); !ok || v != 412 {
		t.Errorf("got %v and %t, want 412 goroutines", v, ok)
	}
	if _, ok := s.value("kro", 100, "goroutines"); ok {
		t.Error("a point that was left out has a value")
	}
}

func TestParse_Errors(t *testing.T) {
	for name, text := range map[string]string{
		"a run without results":        "cpus: 2\nPASS\n",
		"a value without a unit":       "BenchmarkTypes/engine=kro-2 1 12\n",
		"a value that is not a number": "BenchmarkTypes/engine=kro-2 1 many goroutines\n",
	} {
		if _, err := parse("x", text); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestFill(t *testing.T) {
	runs := map[string]*run{"sample": sampleRun(t)}
	const end = "\n" + endMarker
	for name, c := range map[string]struct{ marker, want string }{
		"a table of the growth": {"growth sample types heap-B",
			"| types | CacheFull | kro |\n|---|---|---|\n| 10 | 2 MB | 4 MB |\n| 100 | 9 MB | |"},
		"the measurements in which a peer is ahead": {"ahead sample types",
			"A peer is ahead of CacheFull in these measurements:\n\n" +
				"- Goroutines: kro with 10 types (at best 0.48 times CacheFull)"},
		"the notes": {"notes sample", "Some measurements were left out:\n\n" +
			"- types: controller-runtime was not measured with 100 or more: one measurement took longer than 1m40s"},
	} {
		begin := "before\n<!-- bench-report: " + c.marker + " -->\n"
		got, err := fill(begin+"old text"+end+"\nafter", runs)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if want := begin + c.want + end + "\nafter"; got != want {
			t.Errorf("%s: got %s\nwant %s", name, got, want)
		}
	}
}

func TestFill_TableOfThePlatforms(t *testing.T) {
	r, err := parse("platform", platformSample())
	if err != nil {
		t.Fatal(err)
	}
	got, err := fill("<!-- bench-report: platform platform -->\n"+endMarker, map[string]*run{"platform": r})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n| | platform | kro |\n|---|---|---|\n",
		"\n| time until all instances are ready | 12.8 s | 220 s (17) |\n",
		"\n| writes per instance | 5.2 | 15 (2.87) |\n",
		"\n| peak RSS | 91 MB | 98 MB (1.08) |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}
	for i, p := range r.points {
		if p.labels["engine"] == "kro" {
			r.points[i].values = map[string]float64{"writes/instance": 15}
		}
	}
	if got, err := platformTable(r); err != nil || !strings.Contains(got, "\n| peak RSS | 91 MB | |\n") {
		t.Errorf("a platform without some of the units: got the error %v and %s", err, got)
	}
	without, err := parse("platform", strings.ReplaceAll(platformSample(), "rollout-ns", "unknown-ns"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := platformTable(without); err == nil || !strings.Contains(err.Error(), "rollout-ns") {
		t.Errorf("got the error %v, want one that names the missing unit", err)
	}
}

// shardingSample contains results of BenchmarkSharding.
const shardingSample = "BenchmarkSharding/measure=fleet/shards=0/replicas=1/run=1-2 1 64 watches 60e6 heap-B " +
	"60e6 largest-heap-B 390 sleep-reconciles/s 5e9 sleep-work-ns 900 cpu-reconciles/s\n" +
	"BenchmarkSharding/measure=fleet/shards=16/replicas=1/run=2-2 1 32 watches 24e6 heap-B 30e6 largest-heap-B " +
	"1560 sleep-reconciles/s 2e9 sleep-work-ns 990 cpu-reconciles/s\n" +
	"BenchmarkSharding/measure=leases/shards=16/replicas=3/run=1-2 1 40 lease-writes/s 38 lease-reads/s\n" +
	"BenchmarkSharding/measure=moves-2 1 30 moves 50e6 move-p50-ns 90e6 move-p99-ns 31 leaves 40e6 leave-p50-ns " +
	"80e6 leave-p99-ns 0 LISTs 80 other-LISTs 2 repeated-calls\n" +
	"BenchmarkSharding/measure=crash-2 1 25 shards 3.5e9 unled-p50-ns 4.1e9 unled-p99-ns 4.2e9 longest-ns " +
	"18 unled-shard-seconds/crash 0 LISTs 0 repeated-calls\n"

func TestFill_TablesOfShards(t *testing.T) {
	for name, c := range map[string]struct{ want, missing string }{
		"fleets": {"\n| none | 1 | 64 (1.00) | 60 MB (1.00) | 60 MB (1.00) | 390 (1.00) | 5.00 s (1.00) | 900 (1.00) |" +
			"\n| 16, again | 1 | 32 (0.50) | 24 MB (0.40) | 30 MB (0.50) | 1,560 (4.00) | 2.00 s (0.40) | 990 (1.10) |\n",
			"largest-heap-B"},
		"leases": {"| shards | replicas | writes/s | reads/s |\n|---|---|---|---|\n| 16 | 3 | 40 | 38 |\n", "measure=leases"},
		"moves": {"\n| repeated calls | 2 | 0 |\n| led shards of replicas that were killed (SIGKILL) | 25 | |\n",
			"measure=crash"},
	} {
		marker := "<!-- bench-report: sharding sharding " + name + " -->\n" + endMarker
		for _, removed := range []string{"", c.missing} {
			text := shardingSample
			if removed != "" {
				text = strings.ReplaceAll(text, removed, "removed")
			}
			r, err := parse("sharding", text)
			if err != nil {
				t.Fatal(err)
			}
			got, err := fill(marker, map[string]*run{"sharding": r})
			switch {
			case removed != "" && err == nil:
				t.Errorf("%s: a run without %q was accepted", name, removed)
			case removed == "" && (err != nil || !strings.Contains(got, c.want)):
				t.Errorf("%s: got the error %v and %s\nwant %s", name, err, got, c.want)
			}
		}
	}
}

func TestFill_Errors(t *testing.T) {
	runs := map[string]*run{"sample": sampleRun(t)}
	for name, marker := range map[string]string{
		"an unknown kind":                        "plot sample",
		"an unknown run":                         "machine yesterday",
		"a missing argument":                     "growth sample types",
		"an unknown unit":                        "growth sample types apples",
		"an unknown load":                        "ahead sample apples",
		"a benchmark that has not been measured": "platform sample",
		"shards that have not been measured":     "sharding sample leases",
		"an unknown table":                       "sharding sample apples",
	} {
		if _, err := fill("<!-- bench-report: "+marker+" -->\n"+endMarker, runs); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if _, err := fill("<!-- bench-report: machine sample -->\n", runs); err == nil {
		t.Error("a marker without an end was accepted")
	}
}

// The charts are well-formed, and contain every engine, with its text escaped.
func TestCharts(t *testing.T) {
	r := sampleRun(t)
	chart := loads["types"]
	chart.subtitle = shortMachine(r)
	for name, svg := range map[string]string{
		"curves": chart.draw(r.load("types")),
		"bars":   drawBars("title", shortMachine(r), summary(r)),
	} {
		decoder := xml.NewDecoder(strings.NewReader(svg))
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		for _, want := range []string{"CacheFull", "A CPU &amp; more", "prefers-color-scheme: dark"} {
			if !strings.Contains(svg, want) {
				t.Errorf("%s: %q is missing", name, want)
			}
		}
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		unit  string
		value float64
		want  string
	}{
		{"goroutines", 8020, "8,020"}, {"goroutines", 52, "52"}, {"goroutines", -1234567, "-1,234,567"},
		{"heap-B", 1_234_000, "1.2 MB"}, {"heap-B", 4_192_000_000, "4,192 MB"},
		{"p50-ns", 4_420_000, "4.4 ms"}, {"p50-ns", 1_010_000_000, "1.01 s"}, {"p50-ns", 219_800_000_000, "220 s"},
		{"cpu-us/event", 287, "287 µs"},
	} {
		if got := format(c.unit, c.value); got != c.want {
			t.Errorf("got %q for %v %s, want %q", got, c.value, c.unit, c.want)
		}
	}
}
