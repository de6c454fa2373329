package acceptance

import (
	"cmp"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/rollout"
)

// Summary describes a Blueprint on this replica.
type Summary struct {
	Name  string
	State State
	// Reason and Message describe why the newest generation is not served, or why its rollout does not make progress. They
	// are also in the conditions of the Blueprint.
	Reason, Message string
	GVR             schema.GroupVersionResource // empty if the type is unknown
	Kind            string                      // empty if it is unknown
	Generation      int64
	// ServedGeneration is 0, and Revision is empty, if instances are not reconciled.
	ServedGeneration int64
	Revision         string
	Older            []string             // the loaded older revisions that instances still use
	Progress         *rollout.Progress    // nil if it is unknown
	Templates        []blueprint.Template // of the served spec, or else of the accepted spec
}

// Summaries returns a summary of each Blueprint, sorted by name.
func (c *Controller) Summaries() []Summary { return c.registry.summaries() }

func (r *registry) summaries() []Summary {
	r.mu.Lock()
	decisions := maps.Clone(r.decisions)
	r.mu.Unlock()
	all := make([]Summary, 0, len(decisions))
	for name, d := range decisions {
		all = append(all, d.summary(name))
	}
	slices.SortFunc(all, func(a, b Summary) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func (d decision) summary(name string) Summary {
	s := Summary{Name: name, State: d.state(), Generation: d.generation, GVR: d.gvr}
	accepted := d.revision
	if !d.cleansUpOnly() {
		accepted, s.ServedGeneration, s.Revision = d.running, d.running.generation, d.running.Name
	}
	if d.running != nil {
		s.GVR, s.Kind = d.running.GVR, d.running.Spec.Type.Kind
	}
	if accepted != nil && accepted.Compiled != nil {
		s.Templates = accepted.Compiled.Templates()
		if crd := accepted.Compiled.Definition(); crd != nil {
			s.Kind = crd.Spec.Names.Kind
		}
	}
	if gate := d.gate(); gate != nil {
		for _, older := range d.running.reconcilers.Older() {
			s.Older = append(s.Older, older.Name)
		}
		if progress, known := gate.Progress(); known {
			s.Progress = &progress
		}
	}
	s.Reason, s.Message = d.problem(s.Progress)
	return s
}

// problem returns the reason and the message of the condition that describes why the newest generation is not served,
// or why its rollout does not make progress. They are empty if there is no problem.
func (d decision) problem(progress *rollout.Progress) (reason, message string) {
	switch state := d.state(); {
	case state == StateRejected, state == StateUnknown:
		accepted := d.accepted()
		return accepted.Reason, accepted.Message
	case state == StateWaiting:
		waiting := notServing(d)
		return waiting.Reason, waiting.Message
	case state == StateDeleting || progress == nil:
		return "", ""
	}
	older := ""
	if d.lacksOlder() {
		older = d.olderProblem
	}
	if c := rolloutCondition(*progress, older); c.Status == metav1.ConditionFalse || older != "" {
		return c.Reason, c.Message
	}
	return "", ""
}
