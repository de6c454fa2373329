package plan_test

import (
	"fmt"
	"strings"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// parse returns a plan in the notation of the tests: "leader standby warming>replaces <from swap !unled work/objects"
// for each shard, with the last six optional and "-" for no member.
func parse(shards ...string) plan.Plan {
	p := make(plan.Plan, len(shards))
	for i, s := range shards {
		for j, field := range strings.Fields(s) {
			field = strings.TrimPrefix(field, "-")
			warming, replaces, isWarming := strings.Cut(field, ">")
			from, isFrom := strings.CutPrefix(field, "<")
			unled, isUnled := strings.CutPrefix(field, "!")
			switch {
			case field == "swap":
				p[i].Swap = true
			case isUnled:
				p[i].Unled = plan.Unled(unled)
			case strings.Contains(field, "/"):
				p[i].Load = loadOf(field)
			case isWarming:
				p[i].Warming, p[i].Replaces = warming, replaces
			case isFrom:
				p[i].From = from
			case j == 0:
				p[i].Leader = field
			default:
				p[i].Standby = field
			}
		}
	}
	return p
}

// format is the inverse of parse.
func format(p plan.Plan) string {
	or := func(id string) string {
		if id == "" {
			return "-"
		}
		return id
	}
	shards := make([]string, len(p))
	for i, a := range p {
		fields := []string{or(a.Leader), or(a.Standby)}
		if a.Warming != "" || a.Replaces != "" {
			fields = append(fields, a.Warming+">"+a.Replaces)
		}
		if a.From != "" {
			fields = append(fields, "<"+a.From)
		}
		if a.Swap {
			fields = append(fields, "swap")
		}
		if a.Unled != "" {
			fields = append(fields, "!"+string(a.Unled))
		}
		if a.Load != (plan.Load{}) {
			fields = append(fields, fmt.Sprintf("%d/%d", a.Load.Work, a.Load.Objects))
		}
		shards[i] = strings.Join(fields, " ")
	}
	return strings.Join(shards, " | ")
}

// loadOf returns the load in the notation "work/objects".
func loadOf(s string) (l plan.Load) {
	if _, err := fmt.Sscanf(s, "%d/%d", &l.Work, &l.Objects); err != nil {
		panic(err)
	}
	return l
}

// loadsOf returns loads in the notation "work/objects work/objects ...".
func loadsOf(s string) (loads []plan.Load) {
	for _, field := range strings.Fields(s) {
		loads = append(loads, loadOf(field))
	}
	return loads
}

// limited returns a member with a capacity.
func limited(capacity int, m plan.Member) plan.Member {
	m.Capacity = capacity
	return m
}

// member returns a member that keeps shards warm.
func member(id string, warm ...int) plan.Member { return plan.Member{ID: id, Warm: warm} }

// on returns a member on a node.
func on(node string, m plan.Member) plan.Member {
	m.Node = node
	return m
}

// leaving returns a member that shuts down.
func leaving(m plan.Member) plan.Member {
	m.Leaving = true
	return m
}
