package main

import (
	"fmt"
	"slices"
	"strings"
)

// shardingTables contains the tables of BenchmarkSharding, by argument of the block.
var shardingTables = map[string]func([]point) (string, error){
	"fleets": func(points []point) (string, error) { return shardingTable(points, "fleet", fleetColumns) },
	"leases": func(points []point) (string, error) { return shardingTable(points, "leases", leaseColumns) },
	"moves":  moveTable,
}

// sharding returns the table with the given name.
func (r *run) sharding(name string) (string, error) {
	write, known := shardingTables[name]
	if !known {
		return "", fmt.Errorf("unknown table")
	}
	return write(slices.DeleteFunc(slices.Clone(r.points), func(p point) bool { return p.benchmark != "Sharding" }))
}

type column struct {
	unit, heading string
	hasRatio      bool // Ratios in parentheses refer to the first row.
}

var fleetColumns = []column{
	{"watches", "watches", true},
	{"heap-B", "heap", true},
	{"largest-heap-B", "largest heap", true},
	{"sleep-reconciles/s", "20 ms sleep: reconciles/s", true},
	{"sleep-work-ns", "2,048 objects once", true},
	{"cpu-reconciles/s", "1 ms CPU: reconciles/s", true},
}

var leaseColumns = []column{{"lease-writes/s", "writes/s", false}, {"lease-reads/s", "reads/s", false}}

// shardingTable returns a table with a row for each fleet and a column for each unit.
func shardingTable(points []point, measure string, columns []column) (string, error) {
	var b strings.Builder
	b.WriteString("| shards | replicas |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.heading)
	}
	fmt.Fprintf(&b, "\n|---|---|%s\n", strings.Repeat("---|", len(columns)))
	var first map[string]float64
	for _, p := range points {
		if p.labels["measure"] != measure {
			continue
		}
		if first == nil {
			first = p.values
		}
		fmt.Fprintf(&b, "| %s | %s |", shardsName(p), p.labels["replicas"])
		for _, c := range columns {
			v, measured := p.values[c.unit]
			if !measured {
				return "", fmt.Errorf("no results with the unit %q", c.unit)
			}
			fmt.Fprintf(&b, " %s", format(c.unit, v))
			if c.hasRatio && first[c.unit] > 0 {
				fmt.Fprintf(&b, " (%s)", ratio(v/first[c.unit]))
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
	if first == nil {
		return "", fmt.Errorf("no results")
	}
	return b.String(), nil
}

// shardsName returns the number of shards. Zero stands for replicas that are registered as without shards.
func shardsName(p point) string {
	name := p.labels["shards"]
	if name == "0" {
		name = "none"
	}
	if run := p.labels["run"]; run != "1" {
		name += ", again"
	}
	return name
}

// moveRows contains the rows of the table of moves and crashes.
var moveRows = []struct{ measure, unit, heading, target string }{
	{"moves", "moves", "moves of led shards for balance", ""},
	{"moves", "move-p50-ns", "from the end of a run to the first call of the next leader, p50", ""},
	{"moves", "move-p99-ns", "the same, p99", "1 s"},
	{"moves", "leaves", "led shards of replicas that left (SIGTERM)", ""},
	{"moves", "leave-p50-ns", "from the end of a run to the first call of the next leader, p50", ""},
	{"moves", "leave-p99-ns", "the same, p99", "1 s"},
	{"moves", "LISTs", "lists by the next leader", "0"},
	{"moves", "other-LISTs", "lists by replicas that became warm", ""},
	{"moves", "repeated-calls", "repeated calls", "0"},
	{"crash", "shards", "led shards of replicas that were killed (SIGKILL)", ""},
	{"crash", "unled-p50-ns", "from the signal to the first call of the next leader, p50", ""},
	{"crash", "longest-ns", "the same, longest", "LeaseDuration + 5 RetryPeriods: 5.5 s"},
	{"crash", "unled-shard-seconds/crash", "shard-seconds without a leader per crash", ""},
	{"crash", "LISTs", "lists by the next leader", "0"},
	{"crash", "repeated-calls", "repeated calls", "0"},
}

// moveTable returns the table of moves and crashes.
func moveTable(points []point) (string, error) {
	var b strings.Builder
	b.WriteString("| | measured | target |\n|---|---|---|\n")
	for _, row := range moveRows {
		i := slices.IndexFunc(points, func(p point) bool { return p.labels["measure"] == row.measure })
		if i < 0 {
			return "", fmt.Errorf("no results of %q", row.measure)
		}
		v, measured := points[i].values[row.unit]
		if !measured {
			return "", fmt.Errorf("no results with the unit %q", row.unit)
		}
		fmt.Fprintf(&b, "| %s | %s |", row.heading, format(row.unit, v))
		if row.target != "" {
			fmt.Fprintf(&b, " %s", row.target)
		}
		b.WriteString(" |\n")
	}
	return b.String(), nil
}
