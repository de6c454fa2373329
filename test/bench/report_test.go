package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// results contains all measures of this run, by scenario, engine and unit.
type results struct{ tables []*table }

type table struct {
	scenario string
	units    []string
	engines  []string
	samples  map[string]map[string][]float64
}

var measured = &results{}

func (r *results) add(scenario, engine string, ms measures) {
	i := slices.IndexFunc(r.tables, func(t *table) bool { return t.scenario == scenario })
	if i < 0 {
		i = len(r.tables)
		r.tables = append(r.tables, &table{scenario: scenario, samples: map[string]map[string][]float64{}})
	}
	r.tables[i].add(engine, ms)
}

// lessBaseline returns the value of each unit minus the baseline's median. It returns nothing for the baseline itself,
// or if the baseline was not measured in this run.
func (r *results) lessBaseline(scenario, engine string, ms measures, units []string) (less measures) {
	i := slices.IndexFunc(r.tables, func(t *table) bool { return t.scenario == scenario })
	if i < 0 || engine == baseline {
		return nil
	}
	for _, unit := range units {
		base := r.tables[i].samples[baseline][unit]
		if len(base) == 0 {
			continue
		}
		name, suffix := unit, ""
		if text, ok := strings.CutSuffix(unit, "-B"); ok {
			name, suffix = text, "-B"
		}
		less = append(less, measure{name + "-less-" + baseline + suffix, ms.value(unit) - median(base)})
	}
	return less
}

func (t *table) add(engine string, ms measures) {
	if t.samples[engine] == nil {
		t.engines = append(t.engines, engine)
		t.samples[engine] = map[string][]float64{}
	}
	for _, m := range ms {
		if !slices.Contains(t.units, m.Unit) {
			t.units = append(t.units, m.Unit)
		}
		t.samples[engine][m.Unit] = append(t.samples[engine][m.Unit], m.Value)
	}
}

// print writes a Markdown table for each scenario. It contains medians and, in brackets, their ratios to the medians of
// the engine given by against.
func (r *results) print(w io.Writer, against string) {
	for _, t := range r.tables {
		fmt.Fprintf(w, "\n%s (in brackets: relative to %s)\n\n", t.scenario, against)
		fmt.Fprintf(w, "| | %s |\n", strings.Join(headings(t.units), " | "))
		fmt.Fprintf(w, "|---|%s\n", strings.Repeat("---|", len(t.units)))
		for _, engine := range t.engines {
			fmt.Fprintf(w, "| %s |", engine)
			for _, unit := range t.units {
				fmt.Fprintf(w, " %s |", t.cell(engine, unit, against))
			}
			fmt.Fprintln(w)
		}
	}
}

func (t *table) cell(engine, unit, against string) string {
	values := t.samples[engine][unit]
	if len(values) == 0 {
		return ""
	}
	value := median(values)
	text := measure{Unit: unit, Value: value}.String()
	if peer := t.samples[against][unit]; engine != against && len(peer) > 0 && median(peer) > 0 && value > 0 {
		text += " (" + ratio(value/median(peer)) + ")"
	}
	return text
}

// ratio formats a ratio. A small ratio has two significant digits.
func ratio(r float64) string {
	if r < 0.1 {
		return fmt.Sprintf("%.2g", r)
	}
	return fmt.Sprintf("%.2f", r)
}

// headings returns the units without the suffixes -ns and -B, because the values in the tables include units of time
// and size.
func headings(units []string) []string {
	headings := make([]string, len(units))
	for i, unit := range units {
		unit = strings.TrimSuffix(strings.TrimSuffix(unit, "-ns"), "-B")
		headings[i] = strings.ReplaceAll(unit, "-", " ")
	}
	return headings
}
