package bench

import (
	"fmt"
	"io"
	"strings"
)

// print writes a Markdown table a scenario: medians, and in brackets how many times the peer's they are.
func (r *results) print(w io.Writer, against string) {
	for _, t := range r.tables {
		fmt.Fprintf(w, "\n%s (in brackets: times that of %s)\n\n", t.scenario, against)
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

// ratio keeps two digits of what is small, too.
func ratio(r float64) string {
	if r < 0.1 {
		return fmt.Sprintf("%.2g", r)
	}
	return fmt.Sprintf("%.2f", r)
}

// headings are the units without what the values' own units say.
func headings(units []string) []string {
	headings := make([]string, len(units))
	for i, unit := range units {
		unit = strings.TrimSuffix(strings.TrimSuffix(unit, "-ns"), "-B")
		headings[i] = strings.ReplaceAll(unit, "-", " ")
	}
	return headings
}
