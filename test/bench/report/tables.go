package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// blocks contains the kinds of content between markers. The first argument of each is the name of a run.
var blocks = map[string]struct {
	arguments int
	write     func(r *run, arguments []string) (string, error)
}{
	"machine":  {0, func(r *run, _ []string) (string, error) { return machine(r), nil }},
	"notes":    {0, func(r *run, _ []string) (string, error) { return notes(r), nil }},
	"growth":   {2, func(r *run, a []string) (string, error) { return growthTable(r, a[0], a[1]) }},
	"ahead":    {1, func(r *run, a []string) (string, error) { return ahead(r, a[0]) }},
	"platform": {0, func(r *run, _ []string) (string, error) { return platformTable(r) }},
	"sharding": {1, func(r *run, a []string) (string, error) { return r.sharding(a[0]) }},
}

const endMarker = "<!-- end of bench-report -->"

var block = regexp.MustCompile(`(?s)<!-- bench-report: ([^\n]*?) -->\n.*?` + endMarker)

// fill replaces the content between the markers in a text.
func fill(text string, runs map[string]*run) (string, error) {
	var failure error
	filled := block.ReplaceAllStringFunc(text, func(old string) string {
		words := strings.Fields(block.FindStringSubmatch(old)[1])
		content, err := writeBlock(words, runs)
		if err != nil && failure == nil {
			failure = fmt.Errorf("marker %q: %w", strings.Join(words, " "), err)
		}
		return fmt.Sprintf("<!-- bench-report: %s -->\n%s\n%s", strings.Join(words, " "), strings.TrimSpace(content),
			endMarker)
	})
	if failure == nil && strings.Count(filled, "<!-- bench-report: ") != strings.Count(filled, endMarker) {
		failure = fmt.Errorf("a marker has no end")
	}
	return filled, failure
}

func writeBlock(words []string, runs map[string]*run) (string, error) {
	if len(words) < 2 {
		return "", fmt.Errorf("want a kind and a run")
	}
	b, known := blocks[words[0]]
	if !known {
		return "", fmt.Errorf("unknown kind")
	}
	r, saved := runs[words[1]]
	if !saved {
		return "", fmt.Errorf("test/bench/results/%s.txt does not exist", words[1])
	}
	if arguments := words[2:]; len(arguments) == b.arguments {
		return b.write(r, arguments)
	}
	return "", fmt.Errorf("want %d arguments after the run", b.arguments)
}

// machine describes the machine and the versions of a run.
func machine(r *run) string {
	s := r.settings
	text := fmt.Sprintf("%s CPUs (%s), %s of memory, %s, Go %s, Kubernetes %s, client-go %s, controller-runtime %s, "+
		"kro %s", s["cpus"], s["cpu"], s["memory"], s["kernel"], s["go"], s["kubernetes"], s["client-go"],
		s["controller-runtime"], s["kro"])
	return wrap(fmt.Sprintf("Measured on %s: %s. The API server and etcd ran on the same machine.", s["date"], text))
}

// shortMachine describes a run in one line of a chart.
func shortMachine(r *run) string {
	s := r.settings
	return fmt.Sprintf("%s CPUs (%s), %s, Kubernetes %s, controller-runtime %s, kro %s, Go %s. API server on the same "+
		"machine.", s["cpus"], strings.ReplaceAll(s["cpu"], "(R)", ""), s["memory"], s["kubernetes"],
		s["controller-runtime"], s["kro"], s["go"])
}

var word = regexp.MustCompile(`[a-z0-9-]+`)

// notes lists what was left out. The engines have the names that the tables use.
func notes(r *run) string {
	if len(r.notes) == 0 {
		return "All engines were measured in all sizes."
	}
	lines := []string{"Some measurements were left out:\n"}
	for _, note := range r.notes {
		lines = append(lines, wrapItem(word.ReplaceAllStringFunc(note, engineName)))
	}
	return strings.Join(lines, "\n")
}

// growthTable returns a table with a row for each size and a column for each engine.
func growthTable(r *run, load, unit string) (string, error) {
	s := r.load(load)
	if len(s.sizes) == 0 {
		return "", fmt.Errorf("no results")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |", loads[load].axis)
	for _, engine := range s.engines {
		fmt.Fprintf(&b, " %s |", engineName(engine))
	}
	fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("---|", len(s.engines)))
	found := false
	for _, n := range s.sizes {
		fmt.Fprintf(&b, "| %s |", thousands(n))
		for _, engine := range s.engines {
			if v, ok := s.value(engine, n, unit); ok {
				found = true
				fmt.Fprintf(&b, " %s |", format(unit, v))
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	if !found {
		return "", fmt.Errorf("no results with the unit %q", unit)
	}
	return b.String(), nil
}

// ahead lists the measurements in which a peer is better than CacheFull. In all units, lower is better.
func ahead(r *run, load string) (string, error) {
	s := r.load(load)
	if len(s.sizes) == 0 {
		return "", fmt.Errorf("no results")
	}
	var lines []string
	for _, p := range loads[load].panels {
		for _, engine := range s.engines {
			if isOurs(engine) {
				continue
			}
			var sizes []string
			best := 1.0
			for _, n := range s.sizes {
				peer, measured := s.value(engine, n, p.unit)
				ours, ok := s.value("ours-full", n, p.unit)
				if measured && ok && peer < ours {
					sizes = append(sizes, thousands(n))
					best = min(best, peer/ours)
				}
			}
			if len(sizes) > 0 {
				lines = append(lines, wrapItem(fmt.Sprintf("%s: %s with %s %s (at best %s times CacheFull)",
					p.heading, engineName(engine), list(sizes), loads[load].axis, ratio(best))))
			}
		}
	}
	if len(lines) == 0 {
		return "No peer is ahead of CacheFull in these measurements.", nil
	}
	return "A peer is ahead of CacheFull in these measurements:\n\n" + strings.Join(lines, "\n"), nil
}

// list joins words with commas and "and".
func list(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}

// platformRows contains the rows of the table of BenchmarkPlatform.
var platformRows = []struct{ unit, heading string }{
	{"all-ready-ns", "time until all instances are ready"},
	{"made-to-ready-p50-ns", "from the creation of an instance until it is ready, p50"},
	{"made-to-ready-p99-ns", "the same, p99"},
	{"writes/instance", "writes per instance"},
	{"child-back-p50-ns", "time until a deleted child is back, p50"},
	{"child-back-p99-ns", "the same, p99"},
	{"edit-p50-ns", "time until an edit reaches the child, p50"},
	{"edit-p99-ns", "the same, p99"},
	{"rollout-ns", "rollout of a new version to all instances"},
	{"rollout-writes/instance", "writes per instance for the rollout"},
	{"CPU-ns", "CPU time"},
	{"peak-RSS-B", "peak RSS"},
}

// platformTable returns a table with a row for each unit of BenchmarkPlatform and a column for each platform. Ratios in
// parentheses refer to our platform, which is in the first column.
func platformTable(r *run) (string, error) {
	platforms := slices.DeleteFunc(slices.Clone(r.points), func(p point) bool { return p.benchmark != "Platform" })
	i := slices.IndexFunc(platforms, func(p point) bool { return isOurs(p.labels["engine"]) })
	if i < 0 {
		return "", fmt.Errorf("no results of BenchmarkPlatform with the engine ours")
	}
	ours := platforms[i]
	peers := slices.Delete(platforms, i, i+1)
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |", engineName(ours.labels["engine"]))
	for _, p := range peers {
		fmt.Fprintf(&b, " %s |", engineName(p.labels["engine"]))
	}
	fmt.Fprintf(&b, "\n|---|---|%s\n", strings.Repeat("---|", len(peers)))
	for _, row := range platformRows {
		own := ours.values[row.unit]
		if own <= 0 {
			return "", fmt.Errorf("no results with the unit %q", row.unit)
		}
		fmt.Fprintf(&b, "| %s | %s |", row.heading, format(row.unit, own))
		for _, p := range peers {
			if v, measured := p.values[row.unit]; measured {
				fmt.Fprintf(&b, " %s (%s)", format(row.unit, v), ratio(v/own))
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
	return b.String(), nil
}

const lineWidth = 120

// wrap breaks a paragraph into lines.
func wrap(text string) string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > lineWidth {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return strings.Join(append(lines, line), "\n")
}

// wrapItem breaks an item of a list into lines.
func wrapItem(text string) string { return strings.ReplaceAll(wrap("- "+text), "\n", "\n  ") }
