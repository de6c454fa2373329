package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// format returns a value with its unit, for tables.
func format(unit string, value float64) string {
	switch {
	case strings.HasSuffix(unit, "-ns"):
		return duration(value)
	case strings.HasSuffix(unit, "-B"):
		return significant(value/1e6) + " MB"
	case strings.HasSuffix(unit, "-us/event"), unit == "cpu-us/event":
		return significant(value) + " µs"
	}
	return significant(value)
}

func duration(ns float64) string {
	switch d := time.Duration(ns); {
	case d >= 100*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	default:
		return significant(ns/1e6) + " ms"
	}
}

// significant formats a number with two or three significant digits, and separates thousands.
func significant(v float64) string {
	if math.Abs(v) >= 100 {
		return thousands(int(math.Round(v)))
	}
	if math.Abs(v) >= 10 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// thousands formats a number such as 12,345.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// tick formats the label of an axis, briefly.
func tick(unit string, value float64) string {
	switch {
	case strings.HasSuffix(unit, "-ns"):
		if value >= 1e9 {
			return strconv.FormatFloat(value/1e9, 'g', 3, 64) + " s"
		}
		return strconv.FormatFloat(value/1e6, 'g', 3, 64) + " ms"
	case strings.HasSuffix(unit, "-B"):
		if value >= 1e9 {
			return strconv.FormatFloat(value/1e9, 'g', 3, 64) + " GB"
		}
		return strconv.FormatFloat(value/1e6, 'g', 3, 64) + " MB"
	case unit == "cpu-us/event":
		if value >= 1e3 {
			return strconv.FormatFloat(value/1e3, 'g', 3, 64) + " ms"
		}
		return strconv.FormatFloat(value, 'g', 3, 64) + " µs"
	}
	return thousands(int(value))
}

// ratio formats a ratio with two significant digits.
func ratio(r float64) string {
	if r >= 10 {
		return fmt.Sprintf("%.0f", r)
	}
	if r < 0.1 {
		return fmt.Sprintf("%.2g", r)
	}
	return fmt.Sprintf("%.2f", r)
}
