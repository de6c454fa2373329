package main

import (
	"fmt"
	"math"
	"strings"
)

// panel is one measurement in a line chart.
type panel struct{ heading, unit string }

// curves is a chart with one panel for each measurement, side by side. Both axes are logarithmic.
type curves struct {
	title, subtitle string
	axis            string // What the horizontal axis counts.
	panels          []panel
}

const (
	curvesHeight = 370
	panelTop     = 122
	panelBottom  = curvesHeight - 50
	panelGap     = 22
	tickWidth    = 52 // The labels to the left of a panel.
)

func (d curves) draw(s series) string {
	c := newCanvas(curvesHeight, d.title, d.subtitle, d.describe(s))
	c.legend(80, s.engines)
	each := (width - 2*margin - float64(len(d.panels)-1)*panelGap) / float64(len(d.panels))
	for i, p := range d.panels {
		left := margin + float64(i)*(each+panelGap)
		c.text("heading", left, panelTop-16, p.heading)
		d.drawPanel(c, s, p, left+tickWidth, left+each)
	}
	return c.end()
}

// describe returns the values of the largest size for readers who cannot see the chart.
func (d curves) describe(s series) string {
	if len(s.sizes) == 0 {
		return ""
	}
	largest := s.sizes[len(s.sizes)-1]
	var parts []string
	for _, p := range d.panels {
		var values []string
		for _, engine := range s.engines {
			if v, ok := s.value(engine, largest, p.unit); ok {
				values = append(values, engineName(engine)+" "+format(p.unit, v))
			}
		}
		parts = append(parts, p.heading+": "+strings.Join(values, ", "))
	}
	return fmt.Sprintf("With %s %s: %s.", thousands(largest), d.axis, strings.Join(parts, "; "))
}

func (d curves) drawPanel(c *canvas, s series, p panel, left, right float64) {
	low, high := s.decades(p.unit)
	x := scale{from: float64(s.sizes[0]), to: float64(s.sizes[len(s.sizes)-1]), low: left + 8, high: right - 12}
	y := scale{from: low, to: high, low: panelBottom, high: panelTop}
	for value := low; value <= high*1.01; value *= 10 {
		c.line(left, y.at(value), right, y.at(value))
		c.text("faint right", left-6, y.at(value)+4, tick(p.unit, value))
	}
	lastLabel := math.Inf(-1)
	for _, n := range s.sizes {
		at := x.at(float64(n))
		c.line(at, panelBottom, at, panelBottom+4)
		label := thousands(n)
		if n >= 10000 {
			label = thousands(n/1000) + "k"
		}
		if at-lastLabel > 4+6.5*float64(len(label)) {
			c.text("faint middle", at, panelBottom+18, label)
			lastLabel = at
		}
	}
	c.text("faint middle", (left+right)/2, panelBottom+36, d.axis)
	for _, l := range looks {
		c.curve(s, l.engine, p.unit, x, y)
	}
}

// curve draws the measurements of one engine.
func (c *canvas) curve(s series, engine, unit string, x, y scale) {
	var points [][2]float64
	for _, n := range s.sizes {
		if v, ok := s.value(engine, n, unit); ok && v > 0 {
			points = append(points, [2]float64{x.at(float64(n)), y.at(v)})
		}
	}
	if len(points) == 0 {
		return
	}
	class, _ := look(engine)
	class += " line"
	if isOurs(engine) {
		class += " ours"
	}
	fmt.Fprintf(c, "<polyline class=%q points=\"", class)
	for _, p := range points {
		fmt.Fprintf(c, "%.1f,%.1f ", p[0], p[1])
	}
	c.WriteString("\"/>\n")
	for _, p := range points {
		c.marker(engine, p[0], p[1])
	}
}

// decades returns the powers of ten that enclose the values of a unit.
func (s series) decades(unit string) (low, high float64) {
	low, high = math.Inf(1), 0
	for _, engine := range s.engines {
		for _, n := range s.sizes {
			if v, ok := s.value(engine, n, unit); ok && v > 0 {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	if high == 0 {
		return 1, 10
	}
	low, high = math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high)))
	if low == high {
		high *= 10
	}
	return low, high
}

// scale is a logarithmic scale.
type scale struct {
	from, to  float64 // The first and the last value.
	low, high float64 // Their coordinates.
}

func (s scale) at(value float64) float64 {
	if s.from == s.to {
		return (s.low + s.high) / 2
	}
	return s.low + (s.high-s.low)*math.Log(value/s.from)/math.Log(s.to/s.from)
}
