package statusclient

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/explain"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/status"
)

const (
	// mostProblems is the maximum number of problems that are printed without wide.
	mostProblems = 10
	// mostRunes is the maximum width of the last column without wide.
	mostRunes = 100
	// none stands for an empty column.
	none = "-"
)

// Problems returns the problems with the platform as a whole, one line each. The first lines are about the replica.
// Objects that will be retried are not a problem with the platform.
func Problems(r *status.Replica) (problems []string) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if r.Leadership.Leader == "" && !r.Leadership.Leading {
		add("No replica leads: nothing is reconciled")
	}
	if !r.Caches.Synced {
		add("Caches: %s", r.Caches.Message)
	}
	if !r.Mapper.Synced {
		add("Mapper: the kinds of the cluster have not been read yet")
	}
	for _, e := range r.Mapper.Errors {
		add("Mapper: %s %s: %s", e.Source, e.GroupVersion, e.Error)
	}
	for i := range r.Types {
		if t := &r.Types[i]; isFailing(t) {
			add("Type %s: %s", t.Resource, typeMessage(t))
		}
	}
	for _, b := range r.Blueprints {
		if b.State == "Rejected" || b.State == "Unknown" {
			add("Blueprint %s: %s: %s", b.Name, b.Reason, b.Message)
		}
	}
	if n := r.Parked.Total; n > 0 {
		add("Parked objects, which are not reconciled until they change: %d; run dynamic-controller parked", n)
	}
	return problems
}

// isFailing reports whether a type or one of its children cannot be watched.
func isFailing(t *status.Type) bool {
	switch t.State {
	case "NotFound", "Forbidden", "Failing":
		return true
	}
	return len(t.FailingWatches) > 0
}

// HasFailingTypes reports whether a type or the children of a type cannot be watched.
func HasFailingTypes(r *status.Replica) bool {
	return slices.ContainsFunc(r.Types, func(t status.Type) bool { return isFailing(&t) })
}

// typeMessage returns the error that prevents a type or its children from being watched, or "".
func typeMessage(t *status.Type) string {
	if t.Message != "" || len(t.FailingWatches) == 0 {
		return t.Message
	}
	w := t.FailingWatches[0]
	return fmt.Sprintf("%s: %s: %s", w.Resource, w.State, w.Message)
}

// PrintStatus writes a summary of a replica.
func PrintStatus(w io.Writer, r *status.Replica, wide bool) {
	writePrintable(w, func(w io.Writer) {
		t := newTable(w)
		row := func(title, format string, args ...any) {
			fmt.Fprintf(t, "%s\t%s\n", title, oneLine(fmt.Sprintf(format, args...)))
		}
		row("Replica:", "%s, version %s, started %s ago", r.Leadership.Identity, r.Version, age(r.Time, r.Started))
		row("Leads:", "%s", leads(r.Leadership))
		row("Caches:", "%s", cmp.Or(r.Caches.Message, "synced"))
		row("Types:", "%s", counted(r.Summary.Types))
		row("Blueprints:", "%s", counted(r.Summary.Blueprints))
		row("Objects:", "%d in %s, %d failing, %d parked", r.Summary.Objects, size(r.Summary.Bytes), r.Summary.Failing,
			r.Summary.Parked)
		row("Queue:", "%s", queue(r.Summary.Queue))
		row("Reconciles:", "%s", counted(r.Summary.Reconciles))
		row("Kinds:", "%d, %d errors", r.Mapper.Kinds, len(r.Mapper.Errors))
		_ = t.Flush()
		problems := Problems(r)
		if len(problems) == 0 {
			return
		}
		fmt.Fprint(w, "\nProblems:\n")
		shown := problems
		if !wide {
			shown = problems[:min(len(problems), mostProblems)]
		}
		for _, problem := range shown {
			fmt.Fprintf(w, "  %s\n", shorten(problem, wide))
		}
		if more := len(problems) - len(shown); more > 0 {
			fmt.Fprintf(w, "  and %d more: use -o wide\n", more)
		}
	})
}

func leads(l status.Leadership) string {
	switch {
	case l.Leading:
		return fmt.Sprintf("yes, term %d", l.Term)
	case l.Leader == "":
		return "no, there is no leader"
	}
	return "no, the leader is " + l.Leader
}

func queue(q status.Queue) string {
	return fmt.Sprintf("%d live, %d background, %d delayed, %d running, oldest %s", q.Live, q.Background, q.Delayed,
		q.Running, seconds(q.OldestSeconds))
}

// PrintTypes writes a table of the types.
func PrintTypes(w io.Writer, r *status.Replica, wide bool) {
	writePrintable(w, func(w io.Writer) {
		t := newTable(w)
		if wide {
			row(t, "NAME", "KIND", "BLUEPRINT", "STATE", "AGE", "OBJECTS", "SIZE", "FAILING", "PARKED", "LIVE", "BACKGROUND",
				"DELAYED", "RUNNING", "OLDEST", "RECONCILES", "WATCHES", "MESSAGE")
		} else {
			row(t, "NAME", "KIND", "STATE", "AGE", "OBJECTS", "FAILING", "PARKED", "QUEUED", "MESSAGE")
		}
		for i := range r.Types {
			of, q := &r.Types[i], r.Types[i].Queue
			name, kind, since := of.String(), cmp.Or(of.Kind, none), age(r.Time, of.Since)
			message := shorten(typeMessage(of), wide)
			if wide {
				row(t, name, kind, cmp.Or(of.Blueprint, none), of.State, since, of.Objects, size(of.Bytes), of.Failing,
					of.Parked, q.Live, q.Background, q.Delayed, q.Running, seconds(q.OldestSeconds), sum(of.Reconciles),
					of.Watches, message)
			} else {
				row(t, name, kind, of.State, since, of.Objects, of.Failing, of.Parked, q.Live+q.Background+q.Delayed, message)
			}
		}
		_ = t.Flush()
	})
}

// PrintParked writes a table of the parked objects. now is the time from which their ages are computed.
func PrintParked(w io.Writer, p *status.Parked, now time.Time, wide bool) {
	writePrintable(w, func(w io.Writer) {
		if p.Total == 0 {
			fmt.Fprintln(w, "No objects are parked.")
			return
		}
		t := newTable(w)
		row(t, "TYPE", "NAMESPACE", "NAME", "AGE", "FAILURES", "ERROR")
		for _, o := range p.Objects {
			row(t, o.Resource.String(), cmp.Or(o.Namespace, none), o.Name, age(now, o.Since), o.Failures,
				shorten(o.Error, wide))
		}
		_ = t.Flush()
		if more := p.Total - len(p.Objects); more > 0 {
			fmt.Fprintf(w, "\nand %d more, which are not listed: a replica lists the newest ten of each type\n", more)
		}
	})
}

// writePrintable writes the output of write with control characters replaced.
func writePrintable(w io.Writer, write func(w io.Writer)) {
	var text strings.Builder
	write(&text)
	_, _ = io.WriteString(w, explain.Printable(text.String()))
}

func newTable(w io.Writer) *tabwriter.Writer {
	const padding = 3
	return tabwriter.NewWriter(w, 0, 0, padding, ' ', 0)
}

// row writes a row of a table. It omits empty columns at the end.
func row(w io.Writer, columns ...any) {
	var texts []string
	for _, column := range columns {
		texts = append(texts, oneLine(fmt.Sprint(column)))
	}
	fmt.Fprintln(w, strings.TrimRight(strings.Join(texts, "\t"), "\t"))
}

// oneLine replaces all white space, because line breaks and tabs would start other rows and columns.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// shorten returns a text in one line and, without wide, at most mostRunes characters of it.
func shorten(text string, wide bool) string {
	runes := []rune(oneLine(text))
	if wide || len(runes) <= mostRunes {
		return string(runes)
	}
	return string(runes[:mostRunes-3]) + "..."
}

// counted formats counts, sorted by name. It omits zeros.
func counted[N int | uint64](counts map[string]N) string {
	var total N
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[name]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, name))
			total += n
		}
	}
	if len(parts) == 0 {
		return "0"
	}
	return fmt.Sprintf("%d: %s", total, strings.Join(parts, ", "))
}

func sum(counts map[string]uint64) (total uint64) {
	for _, n := range counts {
		total += n
	}
	return total
}

func age(now, since time.Time) string {
	if since.IsZero() {
		return none
	}
	return duration.HumanDuration(max(0, now.Sub(since)))
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}

// size formats a number of bytes with binary prefixes.
func size(bytes int64) string {
	const step = 1024
	value, unit := float64(bytes), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for value >= step && unit < len(units)-1 {
		value /= step
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}
