package plan_test

import (
	"strings"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// parse returns a plan in the notation of the tests: "leader standby warming>replaces <from" for each shard, with the
// last three optional and "-" for no member.
func parse(shards ...string) plan.Plan {
	p := make(plan.Plan, len(shards))
	for i, s := range shards {
		for j, field := range strings.Fields(s) {
			field = strings.TrimPrefix(field, "-")
			warming, replaces, isWarming := strings.Cut(field, ">")
			from, isFrom := strings.CutPrefix(field, "<")
			switch {
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
		shards[i] = strings.Join(fields, " ")
	}
	return strings.Join(shards, " | ")
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
