package blueprint

import (
	"fmt"
	"regexp"
	"slices"
)

const (
	statusPath     = typePath + ".status"
	conditionsPath = typePath + ".conditions"
)

// validReason matches the condition reasons that Kubernetes accepts.
var validReason = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]{0,1000}[A-Za-z0-9_])?$`)

const notAReason = "%q is not a valid reason; use one word that starts with a letter, such as NoEndpoints"

// report is the compiled spec.type.status and spec.type.conditions.
type report struct {
	fields     node
	conditions []condition
	reads      map[string]bool // the result of readsOf
}

// condition is a compiled Condition.
type condition struct {
	path, kind      string
	status          *expressionAt
	reason, message node
}

// report parses spec.type.status and spec.type.conditions. It does not compile their expressions.
func (p *parsing) report(t Type) report {
	out := report{fields: newLiteral(map[string]any{})}
	size, depth, _ := measure(t.Status)
	switch {
	case size > MaxStatusBytes:
		p.problems.add(statusPath, "", "has more than %d bytes", MaxStatusBytes)
	case depth > MaxTemplateDepth:
		p.problems.add(statusPath, "", "has more than %d levels", MaxTemplateDepth)
	default:
		for _, name := range PlatformStatus {
			if _, has := t.Status[name]; has {
				p.problems.add(statusPath+"."+name, "", "must not be set; the platform defines it")
			}
		}
		out.fields = p.parse(t.Status, statusPath, ofType)
	}
	for i, c := range t.Conditions {
		out.conditions = append(out.conditions, p.condition(i, c))
	}
	return out
}

// readsOf returns the names of the variables that the expressions of spec.type read, and the ids of all resources that
// these variables depend on. The resources must be sorted so that each one follows those that it refers to.
func readsOf(resources []*resource, all []*found) map[string]bool {
	reads := map[string]bool{}
	for _, f := range all {
		if f.owner == ofType && f.compiled.Program != nil {
			for _, name := range f.compiled.References() {
				reads[name] = true
			}
		}
	}
	for _, r := range slices.Backward(resources) {
		for _, o := range r.needs {
			reads[o.ID] = reads[o.ID] || reads[r.ID]
		}
	}
	return reads
}

func (p *parsing) condition(index int, c Condition) condition {
	at := fmt.Sprintf("%s[%d]", conditionsPath, index)
	status := p.expression(unwrapped(c.Status), at+".status", ofType, reports)
	reason := p.parseString(c.Reason, at+".reason", ofType)
	if l, is := reason.(literal); is && c.Reason != "" && !validReason.MatchString(l.value.(string)) {
		p.problems.add(at+".reason", "", notAReason, Cut(c.Reason, maxQuoted))
	}
	return condition{
		path: at, kind: c.Type, status: status, reason: reason,
		message: p.parseString(c.Message, at+".message", ofType),
	}
}
