package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// captured returns the output of a run on kind. The path of the kubeconfig in it has been replaced.
func captured(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("testdata/run.txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func TestParse_Steps(t *testing.T) {
	r, err := parse(strings.NewReader(captured(t)))
	if err != nil {
		t.Fatal(err)
	}
	if r.server != "v1.37.1" || r.replicas != "2" || r.length != ms(60100) {
		t.Errorf("server %s, %s replicas, length %s", r.server, r.replicas, r.length)
	}
	want := []step{
		{ms(1000), "Blueprint applied: its type is served", ms(778)},
		{ms(1200), "First WebApp created: its three children are ready", ms(175)},
		{ms(4500), "20 more WebApps created: ready (median; maximum 528 ms)", ms(119)},
		{ms(4700), "Child deleted: created again", ms(157)},
		{ms(5400), "Blueprint changed: all 21 WebApps are updated", ms(673)},
		{ms(5400), "Mistake in the Blueprint: rejected", ms(46)},
		{ms(5400), "WebApp changed despite the mistake: updated", ms(40)},
		{ms(6000), "Leader killed with SIGKILL; its lease lasts 15s", 0},
		{ms(6400), "Meanwhile: 21 WebApps written and a child deleted", 0},
		{ms(23300), "After the kill: a replica leads", ms(16359)},
		{ms(23300), "After the kill: all changes are applied", ms(17260)},
		{ms(23500), "A watch saw each of the 21 pages written exactly once", 0},
		{ms(23500), "The killed Pod runs again, on standby", 0},
		{ms(29800), "Leader's node drained: another replica leads", ms(1158)},
		{ms(40300), "Rolling update: all Pods of the platform are replaced", ms(10472)},
		{ms(40300), "88 WebApps changed meanwhile: ready (maximum)", ms(631)},
		{ms(60100), "Blueprint deleted: type, 22 WebApps and children are gone", ms(19737)},
	}
	for i := range max(len(want), len(r.steps)) {
		if i >= len(want) || i >= len(r.steps) || r.steps[i] != want[i] {
			t.Fatalf("from step %d on, got\n%v\nwant\n%v", i, r.steps[min(i, len(r.steps)):], want[min(i, len(want)):])
		}
	}
	for _, s := range want {
		if len(s.text) > longestText {
			t.Errorf("%q is longer than %d characters", s.text, longestText)
		}
	}
}

func TestParse_Leaders(t *testing.T) {
	r, err := parse(strings.NewReader(captured(t)))
	if err != nil {
		t.Fatal(err)
	}
	if got := len(r.leaders.lanes()); got != 4+3 {
		t.Errorf("got %d lanes, want one for each Pod and each gap", got)
	}
	const first, second, third, fourth = "dynamic-controller-799fc68c57-s6g2t", "dynamic-controller-799fc68c57-l7j2d",
		"dynamic-controller-799fc68c57-tx498", "dynamic-controller-547bbbc49-5f5nr"
	spans := []span{
		{first, 0, ms(6000)}, {second, ms(22359), ms(23500)}, {third, ms(24658), ms(29828)}, {fourth, ms(40300), ms(60100)},
	}
	if !slices.Equal(r.leaders.spans, spans) {
		t.Errorf("got the spans %v, want %v", r.leaders.spans, spans)
	}
	gaps := []gap{
		{"leader killed", ms(6000), ms(22359)}, {"node drained", ms(23500), ms(24658)},
		{"rolling update", ms(29828), ms(40300)},
	}
	if !slices.Equal(r.leaders.gaps, gaps) {
		t.Errorf("got the gaps %v, want %v", r.leaders.gaps, gaps)
	}
}

// TestParse_KilledPodLeadsAgain covers a container that is restarted before the lease expires.
func TestParse_KilledPodLeadsAgain(t *testing.T) {
	r, err := parse(strings.NewReader("  2.0s  killed the leader a with SIGKILL; its lease lasts 15s\n" +
		" 20.0s  a leads 17000 ms after the kill; after 18000 ms all changes are applied\n" +
		" 20.0s  a runs again and leads\n 30.0s  " + lastLine + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []span{{"a", 0, ms(2000)}, {"a", ms(19000), ms(30000)}}; !slices.Equal(r.leaders.spans, want) {
		t.Errorf("got the spans %v, want %v", r.leaders.spans, want)
	}
	if lanes := r.leaders.lanes(); len(lanes) != 2 || len(lanes[0].spans) != 2 {
		t.Errorf("got the lanes %+v, want one with two spans and a gap", lanes)
	}
}

func TestParse_RejectsIncompleteOutput(t *testing.T) {
	output := captured(t)
	for name, text := range map[string]string{
		"empty":                               "",
		"a run that failed":                   strings.ReplaceAll(output, lastLine, ""),
		"a run that failed after another one": output + strings.ReplaceAll(output, lastLine, ""),
		"without steps":                       "  1.0s  " + lastLine + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parse(strings.NewReader(text)); err == nil {
				t.Error("got no error")
			}
		})
	}
}

// TestParse_ReadsOnlyTheLastRun uses output that includes lines from other programs, like the output of make kind-demo.
func TestParse_ReadsOnlyTheLastRun(t *testing.T) {
	output := captured(t)
	want, err := parse(strings.NewReader(output))
	if err != nil {
		t.Fatal(err)
	}
	all := "Creating cluster ...\n • Ready after 0s\n" + output + "exit 0\n" + output + "Deleting cluster ...\n"
	got, err := parse(strings.NewReader(all))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.steps, want.steps) || !slices.Equal(got.leaders.spans, want.leaders.spans) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestParse_ShortensUnknownLines(t *testing.T) {
	line := "  1.0s  " + strings.Repeat("long ", 20) + "after 12 ms, or 345 ms\n"
	r, err := parse(strings.NewReader(line + "  2.0s  " + lastLine + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := step{ms(1000), strings.Repeat("long ", 10) + "long lo…", ms(345)}
	if !slices.Equal(r.steps, []step{want}) {
		t.Errorf("got %+v, want %+v", r.steps, want)
	}
}

func TestPicture_IsWellFormedAndSelfContained(t *testing.T) {
	const line = "  1.0s  applied"
	hostile := strings.Replace(captured(t), line, "  0.9s  <script>\"a\" & 'b'</script>\x01\n"+line, 1)
	var out bytes.Buffer
	if err := picture(strings.NewReader(hostile), &out); err != nil {
		t.Fatal(err)
	}
	for _, absent := range []string{"<script", "href", "url(", "@import"} {
		if strings.Contains(out.String(), absent) {
			t.Errorf("the image contains %q", absent)
		}
	}
	if !strings.Contains(out.String(), "@media (prefers-color-scheme: dark)") {
		t.Error("the image has no colors for the dark color scheme")
	}
	var texts []string
	elements := map[string]int{}
	decoder := xml.NewDecoder(&out)
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			elements[token.Name.Local]++
		case xml.CharData:
			texts = append(texts, string(token))
		}
	}
	for _, want := range []string{
		"<script>\"a\" & 'b'</script>\ufffd", "Leader's node drained: another replica leads", "16.4 s",
		"rolling update: 10.5 s",
	} {
		if !slices.Contains(texts, want) {
			t.Errorf("the image has no text %q", want)
		}
	}
	// 13 measured times, 4 spans of leaders, 3 gaps, and the page.
	if want := 13 + 4 + 3 + 1; elements["rect"] != want {
		t.Errorf("the image has %d rectangles, want %d", elements["rect"], want)
	}
}

func TestLogarithmic(t *testing.T) {
	for d, want := range map[time.Duration]float64{
		time.Millisecond: barLeft, shortest: barLeft, time.Second: (barLeft + barRight) / 2,
		longest: barRight, time.Hour: barRight,
	} {
		if got := logarithmic(d); got < want-0.01 || got > want+0.01 {
			t.Errorf("%s ends at %.2f, want %.2f", d, got, want)
		}
	}
}
