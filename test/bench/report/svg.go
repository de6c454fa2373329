package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"slices"
)

// The layout of all charts, in pixels.
const (
	width  = 900
	margin = 20
)

// The colors are those of Okabe and Ito, which people with common kinds of color blindness can distinguish. In dark
// mode, they are lighter. Lines also differ in their markers.
const style = `<style>
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; }
.title { font-size: 17px; font-weight: 600; }
.heading { font-size: 13px; font-weight: 600; }
.faint { font-size: 11px; fill: #59636e; }
.right { text-anchor: end; }
.middle { text-anchor: middle; }
.page { fill: #ffffff; stroke: #d1d9e0; }
.grid { stroke: #d1d9e0; }
.ours-full { stroke: #0072b2; fill: #0072b2; }
.ours-metadata { stroke: #56b4e9; fill: #56b4e9; }
.dynamicinformer { stroke: #d55e00; fill: #d55e00; }
.kro { stroke: #009e73; fill: #009e73; }
.controller-runtime { stroke: #cc79a7; fill: #cc79a7; }
.line, .hollow { fill: none; stroke-width: 2; }
.ours { stroke-width: 3; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .faint { fill: #9198a1; }
  .page { fill: #0d1117; stroke: #3d444d; }
  .grid { stroke: #30363d; }
  .ours-full { stroke: #3d9fe0; fill: #3d9fe0; }
  .ours-metadata { stroke: #a5d8f7; fill: #a5d8f7; }
  .dynamicinformer { stroke: #f58b3c; fill: #f58b3c; }
  .kro { stroke: #2fc89c; fill: #2fc89c; }
  .controller-runtime { stroke: #e3a6c8; fill: #e3a6c8; }
  .line, .hollow { fill: none; }
}
</style>
`

// looks contains the engines of the charts, in the order of the legends.
var looks = []struct{ engine, class, marker string }{
	{"ours-full", "ours-full", "circle"},
	{"ours-metadata", "ours-metadata", "ring"},
	{"dynamicinformer", "dynamicinformer", "square"},
	{"kro", "kro", "diamond"},
	{"controller-runtime-unstructured", "controller-runtime", "triangle"},
}

// look returns the class and the marker of an engine.
func look(engine string) (class, marker string) {
	for _, l := range looks {
		if l.engine == engine {
			return l.class, l.marker
		}
	}
	switch engine {
	case "ours":
		return "ours-full", "circle"
	case "kro-10-workers":
		return "dynamicinformer", "square"
	}
	return "grid", "circle"
}

// canvas collects the elements of an image.
type canvas struct{ bytes.Buffer }

// newCanvas begins an image. Its description is the text for readers who cannot see the image.
func newCanvas(height int, title, subtitle, description string) *canvas {
	c := &canvas{}
	fmt.Fprintf(c, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" ", width, height)
	fmt.Fprintf(c, "viewBox=\"0 0 %d %d\" role=\"img\">\n", width, height)
	c.element("title", title)
	c.element("desc", description)
	c.WriteString(style)
	fmt.Fprintf(c, "<rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", width-1, height-1)
	c.text("title", margin, 34, title)
	c.text("faint", margin, 53, subtitle)
	return c
}

// end completes the image.
func (c *canvas) end() string {
	c.WriteString("</svg>\n")
	return c.String()
}

func (c *canvas) element(name, text string) {
	fmt.Fprintf(c, "<%s>", name)
	_ = xml.EscapeText(c, []byte(text)) // Writing to a buffer does not fail.
	fmt.Fprintf(c, "</%s>\n", name)
}

// text writes escaped text whose baseline is at y.
func (c *canvas) text(class string, x, y float64, text string) {
	fmt.Fprintf(c, "<text class=%q x=\"%.1f\" y=\"%.1f\">", class, x, y)
	_ = xml.EscapeText(c, []byte(text)) // Writing to a buffer does not fail.
	c.WriteString("</text>\n")
}

func (c *canvas) line(x1, y1, x2, y2 float64) {
	fmt.Fprintf(c, "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", x1, y1, x2, y2)
}

func (c *canvas) bar(class string, x, y, width, height float64) {
	fmt.Fprintf(c, "<rect class=%q x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\"/>\n",
		class, x, y, width, height)
}

// marker draws the marker of an engine.
func (c *canvas) marker(engine string, x, y float64) {
	const r = 4
	class, shape := look(engine)
	switch shape {
	case "ring":
		fmt.Fprintf(c, "<circle class=\"%s hollow\" cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"/>\n", class, x, y, r)
	case "square":
		c.bar(class, x-r, y-r, 2*r, 2*r)
	case "diamond":
		c.polygon(class, x, y-5, x+5, y, x, y+5, x-5, y)
	case "triangle":
		c.polygon(class, x, y-5, x+5, y+4, x-5, y+4)
	default:
		fmt.Fprintf(c, "<circle class=%q cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"/>\n", class, x, y, r)
	}
}

func (c *canvas) polygon(class string, coordinates ...float64) {
	fmt.Fprintf(c, "<polygon class=%q points=\"", class)
	for pair := range slices.Chunk(coordinates, 2) {
		fmt.Fprintf(c, "%.1f,%.1f ", pair[0], pair[1])
	}
	c.WriteString("\"/>\n")
}

// legend writes the names of the engines in one row.
func (c *canvas) legend(y float64, engines []string) {
	x := float64(margin)
	for _, l := range looks {
		if !slices.Contains(engines, l.engine) {
			continue
		}
		c.marker(l.engine, x+5, y-4)
		name := engineName(l.engine)
		c.text("", x+15, y, name)
		x += 40 + 6.6*float64(len(name))
	}
}
