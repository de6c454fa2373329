package main

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"time"
)

// The layout, in pixels.
const (
	width      = 900
	margin     = 20
	rowHeight  = 22
	barHeight  = 12
	textLeft   = 74
	tookRight  = 572
	barLeft    = 596
	barRight   = width - margin - 20
	laneLeft   = 290
	headHeight = 92
	gapHeight  = 62 // between the steps and the lanes
	axisHeight = 44 // below the lanes
)

// The logarithmic scale of the bars.
const (
	shortest = 10 * time.Millisecond
	longest  = 100 * time.Second
)

const style = `<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; }
.title { font-size: 17px; font-weight: 600; }
.heading { font-weight: 600; }
.faint { font-size: 11px; fill: #59636e; }
.lane-leads { font: 11px ui-monospace, "SFMono-Regular", "DejaVu Sans Mono", monospace; }
.lane-gap { font-size: 12px; }
.right { text-anchor: end; }
.middle { text-anchor: middle; }
.page { fill: #ffffff; stroke: #d1d9e0; }
.grid { stroke: #d1d9e0; }
.bar { fill: #2f7ed8; }
.leads { fill: #2da44e; }
.gap { fill: #cf5a1f; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .faint { fill: #9198a1; }
  .page { fill: #0d1117; stroke: #3d444d; }
  .grid { stroke: #30363d; }
  .bar { fill: #4493f8; }
  .leads { fill: #3fb950; }
  .gap { fill: #f0883e; }
}
</style>
`

// canvas collects the elements of the image.
type canvas struct{ bytes.Buffer }

// text writes escaped text whose baseline is at y.
func (c *canvas) text(class string, x, y float64, text string) {
	fmt.Fprintf(c, "<text class=%q x=\"%.1f\" y=\"%.1f\">", class, x, y)
	_ = xml.EscapeText(c, []byte(text)) // writing to a buffer does not fail
	c.WriteString("</text>\n")
}

// bar writes a bar in the middle of the row that begins at y. It is at least two pixels wide, so that it is visible.
func (c *canvas) bar(class string, from, to, y float64) {
	fmt.Fprintf(c, "<rect class=%q x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"2\"/>\n",
		class, from, y+(rowHeight-barHeight)/2, max(to-from, 2), barHeight)
}

func (c *canvas) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(c, "<line class=%q x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", class, x1, y1, x2, y2)
}

// draw returns the image of a run.
func draw(r run) []byte {
	stepsBottom := headHeight + len(r.steps)*rowHeight
	height := stepsBottom + margin
	lanes := r.leaders.lanes()
	if len(lanes) > 0 {
		height += gapHeight + len(lanes)*rowHeight + axisHeight
	}

	c := &canvas{}
	fmt.Fprintf(c, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" ", width, height)
	fmt.Fprintf(c, "viewBox=\"0 0 %d %d\" role=\"img\">\n", width, height)
	c.WriteString("<title>A run of make kind-demo</title>\n")
	c.WriteString(style)
	fmt.Fprintf(c, "<rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", width-1, height-1)
	c.text("title", margin, 34, "A run of make kind-demo")
	c.text("faint", margin, 53, summary(r))
	drawSteps(c, r.steps)
	if len(lanes) > 0 {
		drawLeaders(c, lanes, r.length, float64(stepsBottom+gapHeight))
	}
	c.WriteString("</svg>\n")
	return c.Bytes()
}

func summary(r run) string {
	const format = "kube-apiserver %s, %s replicas on kind, %.1f s. " +
		"All times were measured by a client of the API server."
	return fmt.Sprintf(format,
		cmp.Or(r.server, "of unknown version"), cmp.Or(r.replicas, "some"), r.length.Seconds())
}

func drawSteps(c *canvas, steps []step) {
	bottom := float64(headHeight + len(steps)*rowHeight)
	for tick := shortest; tick <= longest; tick *= 10 {
		x := logarithmic(tick)
		c.line("grid", x, headHeight-4, x, bottom)
		c.text("faint middle", x, headHeight-9, label(tick))
	}
	c.text("faint right", textLeft-14, headHeight-9, "at")
	c.text("faint", textLeft, headHeight-9, "step")
	c.text("faint right", tookRight, headHeight-9, "took")
	for i, s := range steps {
		y := float64(headHeight + i*rowHeight)
		c.text("faint right", textLeft-14, y+15, fmt.Sprintf("%.1f s", s.at.Seconds()))
		c.text("step", textLeft, y+15, s.text)
		if s.took > 0 {
			c.text("right", tookRight, y+15, label(s.took))
			c.bar("bar", barLeft, logarithmic(s.took), y)
		}
	}
}

// lane is a row of the lower part.
type lane struct {
	class, name string
	spans       []span
}

// lanes returns a lane for each Pod that led, and between them a lane for each gap.
func (l leadership) lanes() (all []lane) {
	for _, s := range l.spans {
		if i := slices.IndexFunc(all, func(other lane) bool { return other.name == s.pod }); i >= 0 {
			all[i].spans = append(all[i].spans, s)
		} else {
			all = append(all, lane{"leads", s.pod, []span{s}})
		}
		for _, g := range l.gaps {
			if g.from == s.to {
				all = append(all, lane{"gap", fmt.Sprintf("%s: %s", g.cause, label(g.to-g.from)), []span{{from: g.from, to: g.to}}})
			}
		}
	}
	return all
}

// drawLeaders draws when each Pod led.
func drawLeaders(c *canvas, lanes []lane, length time.Duration, top float64) {
	x := func(at time.Duration) float64 {
		return laneLeft + float64(barRight-laneLeft)*at.Seconds()/length.Seconds()
	}
	bottom := top + float64(len(lanes)*rowHeight)
	c.text("heading", margin, top-12, "Which Pod leads")
	for tick := time.Duration(0); tick <= length; tick += 10 * time.Second {
		c.line("grid", x(tick), top, x(tick), bottom)
		c.text("faint middle", x(tick), bottom+15, fmt.Sprintf("%.0f s", tick.Seconds()))
	}
	for i, l := range lanes {
		y := top + float64(i*rowHeight)
		c.text("lane-"+l.class, margin, y+15, l.name)
		for _, s := range l.spans {
			c.bar(l.class, x(s.from), x(s.to), y)
		}
	}
	c.text("faint", margin, bottom+40, "Orange: until the client saw the next leader. "+
		"During a drain and a rolling update, the old leader can still lead for part of it.")
}

// logarithmic returns the x coordinate at which the bar for a duration ends.
func logarithmic(d time.Duration) float64 {
	d = min(max(d, shortest), longest)
	decades := math.Log10(float64(d) / float64(shortest))
	return barLeft + (barRight-barLeft)*decades/math.Log10(float64(longest)/float64(shortest))
}

// label formats a duration with three digits at most.
func label(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d%time.Second == 0 || d >= 100*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	default:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
}
