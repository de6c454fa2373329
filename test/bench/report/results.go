package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// run is the saved output of one run of the benchmarks.
type run struct {
	name     string            // The name of the file, without its extension.
	settings map[string]string // The machine and the versions.
	notes    []string
	points   []point
}

// point is one result line: one engine, measured in one size of one benchmark.
type point struct {
	benchmark string // For example "Types".
	labels    map[string]string
	values    map[string]float64
}

// readRuns reads all runs in a directory.
func readRuns(dir string) (map[string]*run, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	runs := map[string]*run{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(filepath.Base(path), ".txt")
		if runs[name], err = parse(name, string(text)); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return runs, nil
}

func parse(name, text string) (*run, error) {
	r := &run{name: name, settings: map[string]string{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "Benchmark") {
			p, err := parsePoint(line)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", line, err)
			}
			r.points = append(r.points, p)
			continue
		}
		key, value, found := strings.Cut(line, ": ")
		switch value = strings.TrimSpace(value); {
		case !found || strings.ContainsAny(key, " |"):
		case key == "note":
			r.notes = append(r.notes, value)
		default:
			r.settings[key] = value
		}
	}
	if len(r.points) == 0 {
		return nil, fmt.Errorf("no results")
	}
	return r, nil
}

// parsePoint parses a line such as "BenchmarkTypes/engine=kro-2 1 12 goroutines".
func parsePoint(line string) (point, error) {
	fields := strings.Fields(line)
	if len(fields) < 4 || len(fields)%2 != 0 {
		return point{}, fmt.Errorf("want a name, a count, and pairs of a value and a unit")
	}
	parts := strings.Split(strings.TrimPrefix(fields[0], "Benchmark"), "/")
	p := point{benchmark: parts[0], labels: map[string]string{}, values: map[string]float64{}}
	for i, part := range parts[1:] {
		if i == len(parts)-2 {
			part = withoutProcs(part)
		}
		key, value, _ := strings.Cut(part, "=")
		p.labels[key] = value
	}
	for i := 2; i < len(fields); i += 2 {
		value, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return point{}, err
		}
		p.values[fields[i+1]] = value
	}
	return p, nil
}

// withoutProcs removes GOMAXPROCS from the end of a benchmark's name. It is absent if it is 1.
func withoutProcs(name string) string {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return name
	}
	if _, err := strconv.Atoi(name[i+1:]); err != nil {
		return name
	}
	return name[:i]
}

// growth returns the measurements of one load of BenchmarkGrowth.
func (r *run) growth(load string) series {
	s := series{values: map[string]map[int]map[string]float64{}}
	for _, p := range r.points {
		n, err := strconv.Atoi(p.labels["n"])
		if p.benchmark != "Growth" || p.labels["load"] != load || err != nil {
			continue
		}
		engine := p.labels["engine"]
		if s.values[engine] == nil {
			s.values[engine] = map[int]map[string]float64{}
			s.engines = append(s.engines, engine)
		}
		s.values[engine][n] = p.values
		if !slices.Contains(s.sizes, n) {
			s.sizes = append(s.sizes, n)
		}
	}
	slices.Sort(s.sizes)
	return s
}

// series contains the measurements of one load in all sizes.
type series struct {
	sizes   []int
	engines []string
	values  map[string]map[int]map[string]float64 // By engine, size and unit.
}

// value returns a measurement, and false if it was left out.
func (s series) value(engine string, n int, unit string) (float64, bool) {
	v, ok := s.values[engine][n][unit]
	return v, ok
}

// engines contains the names of the engines in charts and tables.
var engines = map[string]string{
	"ours-full":                       "CacheFull",
	"ours-metadata":                   "CacheMetadata",
	"ours-keys":                       "CacheKeys",
	"ours":                            "platform",
	"dynamicinformer":                 "dynamic informers",
	"kro":                             "kro",
	"kro-10-workers":                  "kro with 10 workers",
	"controller-runtime-unstructured": "controller-runtime",
}

func engineName(engine string) string {
	if name, ok := engines[engine]; ok {
		return name
	}
	return engine
}

// isOurs reports whether the engine is this library in one of its cache modes.
func isOurs(engine string) bool { return engine == "ours" || strings.HasPrefix(engine, "ours-") }
