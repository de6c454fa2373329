package platform

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/util/json"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// maxServedBytes is how large a spec may be that is kept in a status, beside the one that is refused. What is larger is
// served until the process ends.
const maxServedBytes = 256 << 10

// servedField is what the status says while the newest generation is refused: what is served instead. A process that has
// never seen that generation goes on with it.
func servedField(d decision) (field map[string]any, err error) {
	if d.refusal == nil || d.onlyCleans() || d.running.generation == d.generation {
		return nil, nil
	}
	data, err := json.Marshal(blueprint.Served{Generation: d.running.generation, Spec: d.running.spec})
	if err != nil || len(data) > maxServedBytes {
		return nil, err
	}
	return field, json.Unmarshal(data, &field)
}

// wantedServed is what the status is to say is served, given what it says. While nothing can be served, what was stays
// written: it is the only place where that generation is kept, and what it lacks may come back.
func wantedServed(d decision, there map[string]any) (map[string]any, error) {
	if d.refusal != nil && d.onlyCleans() {
		return there, nil
	}
	served, err := servedField(d)
	if served != nil && there["generation"] == served["generation"] {
		return there, err // a generation is never changed
	}
	return served, err
}

// servedBefore is the program of the generation that the status says is served, nil if it says none or if that one would be
// refused by now too. Its rights were asked for when it was accepted.
func (p *Platform) servedBefore(ctx context.Context, b *blueprint.Blueprint, own claim) (*program, error) {
	if b.Status.Served == nil {
		return nil, nil
	}
	before := *b
	before.Generation, before.Spec = b.Status.Served.Generation, b.Status.Served.Spec
	if blueprint.DefinitionName(&before) != own.crd {
		return nil, nil // somebody else wrote it
	}
	facts, err := p.factsFor(ctx, &before, own)
	if err != nil {
		return nil, err
	}
	judged, err := p.compile(&before, facts)
	if err != nil {
		return nil, errors.Join(errors.New("compile the generation that was served before"), err)
	}
	return judged.program, nil
}
