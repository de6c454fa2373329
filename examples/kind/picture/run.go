package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// run is a complete run of the demonstration.
type run struct {
	server, replicas string
	steps            []step
	leaders          leadership
	length           time.Duration
}

// step is a row of the image.
type step struct {
	at   time.Duration // from the start of the run until the step was reported
	text string
	took time.Duration // 0 if it was not measured
}

// lastLine is the line that the demonstration prints after all steps have succeeded.
const lastLine = "all steps were observed at the API server"

var (
	lineFormat     = regexp.MustCompile(`^ *(\d+\.\d)s  (\S.*)$`)
	serverFormat   = regexp.MustCompile(`^kube-apiserver (\S+) is ready`)
	replicasFormat = regexp.MustCompile(`^using the platform that runs as (\d+) Pods`)
	durationFormat = regexp.MustCompile(`(\d+) ms`)
)

// parse reads the output of a run. It ignores lines from other programs and indented lines. If the output contains
// several runs, parse returns the last one.
func parse(in io.Reader) (run, error) {
	var r run
	complete := false
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		match := lineFormat.FindStringSubmatch(lines.Text())
		if match == nil {
			continue
		}
		seconds, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			return run{}, fmt.Errorf("line %q: %w", lines.Text(), err)
		}
		at, text := time.Duration(seconds*float64(time.Second)), match[2]
		if strings.HasPrefix(text, "using the cluster") {
			r, complete = run{}, false
		}
		if text == lastLine {
			r.length, complete = at, true
			r.leaders.end(at)
		}
		if !complete {
			r.add(at, text)
		}
	}
	if err := lines.Err(); err != nil {
		return run{}, fmt.Errorf("read the output: %w", err)
	}
	if !complete {
		return run{}, fmt.Errorf("the output has no complete run: the line %q is missing", lastLine)
	}
	if len(r.steps) == 0 || r.length == 0 {
		return run{}, errors.New("the output has no steps")
	}
	return r, nil
}

// add adds a line of the run.
func (r *run) add(at time.Duration, text string) {
	if match := serverFormat.FindStringSubmatch(text); match != nil {
		r.server = match[1]
		return
	}
	if match := replicasFormat.FindStringSubmatch(text); match != nil {
		r.replicas = match[1]
		return
	}
	if strings.HasPrefix(text, "using the cluster") {
		return
	}
	// Each chapter begins when the previous one has been reported.
	var began time.Duration
	if len(r.steps) > 0 {
		began = r.steps[len(r.steps)-1].at
	}
	r.leaders.add(began, at, text)
	r.steps = append(r.steps, stepsOf(at, text)...)
}

// wording maps a line of the output to rows of the image. The rows are templates for regexp.Expand. A line can have
// several measured times.
type wording struct {
	line *regexp.Regexp
	rows []row
}

type row struct{ text, milliseconds string }

var wordings = []wording{
	{regexp.MustCompile(`^applied the Blueprint .* is served after (\d+) ms`),
		[]row{{"Blueprint applied: its type is served", "$1"}}},
	{regexp.MustCompile(`^created the WebApp .* Ready after (\d+) ms`),
		[]row{{"First WebApp created: its three children are ready", "$1"}}},
	{regexp.MustCompile(`^created (\d+) more, .* after (\d+) ms \(median\), or at most (\d+) ms`),
		[]row{{"$1 more WebApps created: ready (median; maximum $3 ms)", "$2"}}},
	{regexp.MustCompile(`^deleted the ConfigMap .* after (\d+) ms`),
		[]row{{"Child deleted: created again", "$1"}}},
	{regexp.MustCompile(`^changed the Blueprint: all (\d+) WebApps .* after (\d+) ms`),
		[]row{{"Blueprint changed: all $1 WebApps are updated", "$2"}}},
	{regexp.MustCompile(`^made a mistake in the Blueprint: .* after (\d+) ms`),
		[]row{{"Mistake in the Blueprint: rejected", "$1"}}},
	{regexp.MustCompile(`^the previous revision is still served: .* after (\d+) ms`),
		[]row{{"WebApp changed despite the mistake: updated", "$1"}}},
	{regexp.MustCompile(`^killed the leader \S+ .* lease lasts (\S+)`),
		[]row{{"Leader killed with SIGKILL; its lease lasts $1", ""}}},
	{regexp.MustCompile(`^changed or created (\d+) WebApps and deleted a child`),
		[]row{{"Meanwhile: $1 WebApps written and a child deleted", ""}}},
	{regexp.MustCompile(`^\S+ leads (\d+) ms after the kill; after (\d+) ms all`),
		[]row{{"After the kill: a replica leads", "$1"}, {"After the kill: all changes are applied", "$2"}}},
	{regexp.MustCompile(`^no write is missing or duplicated: .* each of the (\d+) pages`),
		[]row{{"A watch saw each of the $1 pages written exactly once", ""}}},
	{regexp.MustCompile(`^\S+ runs again as a standby`),
		[]row{{"The killed Pod runs again, on standby", ""}}},
	{regexp.MustCompile(`^\S+ runs again and leads`),
		[]row{{"The killed Pod runs again and leads again", ""}}},
	{regexp.MustCompile(`^drained the node \S+: .* leads after (\d+) ms`),
		[]row{{"Leader's node drained: another replica leads", "$1"}}},
	{regexp.MustCompile(`^replaced all Pods .* in (\d+) ms: .*; (\d+) WebApps .* after at most (\d+) ms`),
		[]row{{"Rolling update: all Pods of the platform are replaced", "$1"},
			{"$2 WebApps changed meanwhile: ready (maximum)", "$3"}}},
	{regexp.MustCompile(`^deleted the Blueprint: (\d+) WebApps, .* after (\d+) ms`),
		[]row{{"Blueprint deleted: type, $1 WebApps and children are gone", "$2"}}},
}

// stepsOf returns the rows for a line. If the line has no wording, its row consists of the beginning of the line and
// its last duration.
func stepsOf(at time.Duration, text string) []step {
	for _, w := range wordings {
		match := w.line.FindStringSubmatchIndex(text)
		if match == nil {
			continue
		}
		var steps []step
		for _, row := range w.rows {
			expand := func(template string) string { return string(w.line.ExpandString(nil, template, text, match)) }
			steps = append(steps, step{at, expand(row.text), milliseconds(expand(row.milliseconds))})
		}
		return steps
	}
	s := step{at: at, text: shorten(text)}
	if all := durationFormat.FindAllStringSubmatch(text, -1); len(all) > 0 {
		s.took = milliseconds(all[len(all)-1][1])
	}
	return []step{s}
}

// milliseconds returns 0 if there is no number.
func milliseconds(number string) time.Duration {
	n, err := strconv.Atoi(number)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Millisecond
}

// longestText is the number of characters that fit in front of the measured time.
const longestText = 58

func shorten(text string) string {
	runes := []rune(text)
	if len(runes) <= longestText {
		return text
	}
	return strings.TrimSpace(string(runes[:longestText-1])) + "…"
}
