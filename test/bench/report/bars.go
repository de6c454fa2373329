package main

import "strings"

// group is one measurement in a bar chart.
type group struct {
	heading string
	unit    string
	values  []barValue
}

type barValue struct {
	engine string
	value  float64
}

const (
	barColumns = 2
	barNames   = 122 // The names to the left of the bars.
	barHeight  = 12
	barRow     = 19
	barLabels  = 66 // The values to the right of the bars.
	groupTop   = 34 // The heading of a group.
	groupGap   = 14
)

// drawBars draws the groups in two columns. The bars of a group are proportional to its values.
func drawBars(title, subtitle string, groups []group) string {
	rows := (len(groups) + barColumns - 1) / barColumns
	rowHeight := 0.0
	for _, g := range groups {
		rowHeight = max(rowHeight, groupTop+barRow*float64(len(g.values))+groupGap)
	}
	const top = 66
	c := newCanvas(top+int(float64(rows)*rowHeight), title, subtitle, describe(groups))
	columnWidth := (width - 2*margin - 30.0) / barColumns
	for i, g := range groups {
		left := margin + float64(i%barColumns)*(columnWidth+30)
		c.group(g, left, top+float64(i/barColumns)*rowHeight, columnWidth)
	}
	return c.end()
}

func (c *canvas) group(g group, left, top, columnWidth float64) {
	c.text("heading", left, top+20, g.heading)
	largest := 0.0
	for _, v := range g.values {
		largest = max(largest, v.value)
	}
	for i, v := range g.values {
		y := top + groupTop + barRow*float64(i)
		class, _ := look(v.engine)
		length := max(2, (columnWidth-barNames-barLabels)*v.value/largest)
		c.text("right", left+barNames-8, y+10, engineName(v.engine))
		c.bar(class, left+barNames, y, length, barHeight)
		c.text("faint", left+barNames+length+6, y+10, format(g.unit, v.value))
	}
}

func describe(groups []group) string {
	var parts []string
	for _, g := range groups {
		var values []string
		for _, v := range g.values {
			values = append(values, engineName(v.engine)+" "+format(g.unit, v.value))
		}
		parts = append(parts, g.heading+": "+strings.Join(values, ", ")+".")
	}
	return strings.Join(parts, " ")
}
