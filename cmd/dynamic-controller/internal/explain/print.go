package explain

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// Print writes the report as text. Its first line names the most probable cause. With wide, it contains all conditions
// and all children.
func (r *Report) Print(w io.Writer, wide bool) {
	var text strings.Builder
	r.print(&text, wide)
	_, _ = io.WriteString(w, Printable(text.String()))
}

func (r *Report) print(w io.Writer, wide bool) {
	fmt.Fprintf(w, "%s is %s: ", oneLine(r.Object), r.State)
	switch {
	case len(r.Causes) > 0:
		printFinding(w, r.Causes[0], r.Object, "")
	default:
		fmt.Fprintln(w, oneLine(firstLine(r.Message)))
	}
	if len(r.Causes) > 1 {
		fmt.Fprint(w, "\nAlso:\n")
		for _, cause := range r.Causes[1:] {
			fmt.Fprint(w, "  ")
			printFinding(w, cause, "", "  ")
		}
	}
	if len(r.Notes) > 0 {
		fmt.Fprint(w, "\nNotes:\n")
		for _, note := range r.Notes {
			fmt.Fprint(w, "  ")
			printFinding(w, note, "", "  ")
		}
	}
	r.printConditions(w, wide)
	r.printChildren(w, wide)
	r.printEvents(w)
	if len(r.Unread) > 0 {
		fmt.Fprintf(w, "\nNot readable:\n")
		for _, unread := range r.Unread {
			fmt.Fprintf(w, "  %s\n", oneLine(unread))
		}
	}
}

// printFinding writes a finding. It omits the object if it equals about. All lines but the first are indented.
func printFinding(w io.Writer, f Finding, about, indent string) {
	if f.Object != about {
		fmt.Fprintf(w, "%s: ", oneLine(f.Object))
	}
	// Only the action of a finding has an arrow.
	message := strings.ReplaceAll(arrow.ReplaceAllString(f.Message, "$1| ->"), "\n", "\n"+indent+"    ")
	fmt.Fprintf(w, "%s: %s\n%s  -> %s\n", oneLine(f.Reason), message, indent, oneLine(f.Action))
}

// arrow matches lines that look like the action of a finding.
var arrow = regexp.MustCompile(`(\n\s*)->`)

func (r *Report) printConditions(w io.Writer, wide bool) {
	if !wide || len(r.Conditions) == 0 {
		return
	}
	fmt.Fprint(w, "\nConditions:\n")
	t := newTable(w)
	for _, c := range r.Conditions {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", oneLine(c.Type), oneLine(string(c.Status)), oneLine(c.Reason),
			oneLine(firstLine(c.Message)))
	}
	_ = t.Flush()
}

func (r *Report) printChildren(w io.Writer, wide bool) {
	var shown []*Node
	for _, child := range r.Children {
		if wide || !child.IsHealthy() {
			shown = append(shown, child)
		}
	}
	if len(shown) == 0 {
		return
	}
	title := "Not ready"
	if wide {
		title = "Children"
	}
	fmt.Fprintf(w, "\n%s:\n", title)
	t := newTable(w)
	for _, child := range shown {
		fmt.Fprintf(t, "  %s\n", child.row(child.Object))
	}
	_ = t.Flush()
}

func (r *Report) printEvents(w io.Writer) {
	if len(r.Events) == 0 {
		return
	}
	fmt.Fprint(w, "\nEvents:\n")
	t := newTable(w)
	for _, e := range r.Events {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", e.Age, oneLine(e.Type), oneLine(e.Reason), oneLine(e.Object),
			oneLine(firstLine(e.Note)))
	}
	_ = t.Flush()
}

// Print writes the tree as text.
func (n *Node) Print(w io.Writer) {
	var text strings.Builder
	t := newTable(&text)
	fmt.Fprintln(t, "NAME\tSTATE\tRESOURCE\tSTAGE\tAGE\tMESSAGE")
	n.print(t, "", "")
	_ = t.Flush()
	_, _ = io.WriteString(w, Printable(text.String()))
}

// print writes a node and its descendants. The node's line starts with first, and the lines of its descendants with
// rest.
func (n *Node) print(w io.Writer, first, rest string) {
	fmt.Fprintln(w, n.row(first+n.Object))
	last := len(n.Children) + len(n.Unread) - 1
	branch := func(i int) (string, string) {
		if i == last {
			return rest + "└─ ", rest + "   "
		}
		return rest + "├─ ", rest + "│  "
	}
	for i, child := range n.Children {
		first, rest := branch(i)
		child.print(w, first, rest)
	}
	for i, unread := range n.Unread {
		first, _ := branch(len(n.Children) + i)
		fmt.Fprintln(w, first+oneLine(unread))
	}
}

// row returns the line of a node in the table, with columns separated by tabs.
func (n *Node) row(name string) string {
	resource, stage := "-", "-"
	if n.Stage != nil {
		resource, stage = n.Resource, strconv.Itoa(*n.Stage)
	}
	return strings.TrimRight(strings.Join([]string{
		oneLine(name), string(n.State), resource, stage, n.Age, oneLine(firstLine(n.Message)),
	}, "\t"), "\t")
}

func newTable(w io.Writer) *tabwriter.Writer {
	const padding = 3
	return tabwriter.NewWriter(w, 0, 0, padding, ' ', 0)
}

func firstLine(text string) string {
	line, _, more := strings.Cut(text, "\n")
	if more {
		line += " ..."
	}
	return line
}

// Printable replaces all characters that could control a terminal, except tabs and line breaks. Names, messages and
// errors can contain text written by other users.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// oneLine replaces the characters that would start a new line or a new column of a table.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		return r
	}, text)
}
