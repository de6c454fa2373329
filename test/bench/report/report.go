package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// documents are the patterns of the Markdown files that can contain markers.
var documents = []string{"README.md", "docs/*.md", "test/bench/README.md"}

// loads describes the charts of BenchmarkGrowth, by load.
var loads = map[string]curves{
	"types": {
		title: "Growth with the number of types", axis: "types",
		panels: []panel{{"Goroutines", "goroutines"}, {"Heap", "heap-B"}, {"All objects reconciled", "all-reconciled-ns"}},
	},
	"objects": {
		title: "Growth with the number of objects of one type", axis: "objects",
		panels: []panel{{"Heap", "heap-B"}, {"Peak RSS", "peak-rss-B"}, {"All objects reconciled", "all-reconciled-ns"}},
	},
	"rate": {
		title: "Growth with the rate of updates", axis: "updates per second",
		panels: []panel{{"Latency, p50", "latency-p50-ns"}, {"Latency, p99", "latency-p99-ns"},
			{"CPU time of an update", "cpu-us/event"}},
	},
}

// load returns the measurements of a load.
func (r *run) load(name string) series { return r.growth(name) }

// makeReport returns the contents of all files of the report, by name.
func makeReport(root string) (map[string]string, error) {
	runs, err := readRuns(filepath.Join(root, "test/bench/results"))
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, pattern := range documents {
		paths, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range paths {
			text, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				return nil, err
			}
			if files[name], err = fill(string(text), runs); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if r := runs["growth"]; r != nil {
		for name, chart := range loads {
			chart.subtitle = shortMachine(r)
			if s := r.load(name); len(s.sizes) > 0 {
				files["docs/growth-"+name+".svg"] = chart.draw(s)
			}
		}
		files["docs/benchmarks.svg"] = drawBars("Benchmarks compared with peers (lower is better)", shortMachine(r),
			summary(r))
	}
	if r := runs["platform"]; r != nil {
		files["docs/benchmark-platform.svg"] = drawBars("The demo platform compared with kro (lower is better)",
			shortMachine(r), platformSummary(r))
	}
	return files, nil
}

// summary returns the groups of docs/benchmarks.svg: the largest size of each load.
func summary(r *run) []group {
	var groups []group
	for _, g := range []struct{ load, heading, unit string }{
		{"types", "Goroutines, %s types", "goroutines"},
		{"types", "Heap, %s types", "heap-B"},
		{"types", "All objects of %s types reconciled", "all-reconciled-ns"},
		{"objects", "Heap, %s objects of 1 kB", "heap-B"},
		{"objects", "All of %s objects reconciled", "all-reconciled-ns"},
		{"rate", "CPU time of an update, %s updates/s", "cpu-us/event"},
	} {
		s := r.load(g.load)
		if len(s.sizes) == 0 {
			continue
		}
		n := s.sizes[len(s.sizes)-1]
		next := group{heading: fmt.Sprintf(g.heading, thousands(n)), unit: g.unit}
		for _, l := range looks {
			if v, ok := s.value(l.engine, n, g.unit); ok {
				next.values = append(next.values, barValue{l.engine, v})
			}
		}
		groups = append(groups, next)
	}
	return groups
}

// platformSummary returns the groups of the chart of BenchmarkPlatform.
func platformSummary(r *run) []group {
	var groups []group
	for _, g := range []struct{ heading, unit string }{
		{"All instances ready", "all-ready-ns"},
		{"Rollout to all instances", "rollout-ns"},
		{"A deleted child is back, p50", "child-back-p50-ns"},
		{"An edit reaches the child, p50", "edit-p50-ns"},
		{"Writes per instance", "writes/instance"},
		{"Peak RSS", "peak-RSS-B"},
	} {
		next := group{heading: g.heading, unit: g.unit}
		for _, p := range r.points {
			if v, ok := p.values[g.unit]; ok && p.benchmark == "Platform" {
				next.values = append(next.values, barValue{p.labels["engine"], v})
			}
		}
		if len(next.values) > 0 {
			groups = append(groups, next)
		}
	}
	return groups
}
