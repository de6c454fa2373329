package platform

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// load judges a stored revision like a new generation: it compiles the spec and checks permissions again. The program is nil
// if the revision is refused now.
func (p *Platform) load(ctx context.Context, b *blueprint.Blueprint, own claim, r *revision) (judgement, []right, error) {
	before, err := p.restore(ctx, b, r)
	if err != nil {
		return judgement{}, nil, err
	}
	if blueprint.DefinitionName(before) != own.crd {
		return judgement{refusal: &refusal{reasonInvalid, fmt.Sprintf("revision %s defines another type, %s", r.Name, blueprint.DefinitionName(before))}}, nil, nil
	}
	judged, missing, err := p.judge(ctx, before, own, judgement{})
	if err != nil {
		return judgement{}, nil, fmt.Errorf("load revision %s: %w", r.Name, err)
	}
	if judged.program != nil {
		judged.program.revision = r.Name
	}
	return judged, missing, nil
}

// wanted returns the program to run, or nil, and the rights that a stored revision lacks. Except for cleaning up, only specs
// that are stored are executed. If the type does not exist and nothing is stored, there are no instances to clean up.
func (p *Platform) wanted(ctx context.Context, b *blueprint.Blueprint, own claim, d *decision, h history) (*program, []right, error) {
	newest := h.newest(b.UID)
	var cleaning *program
	if d.defined || newest != nil {
		cleaning = cleaner(b, d.gvr)
	}
	switch {
	case d.gvr.Empty() && d.refusal != nil:
		return nil, nil, nil // the type is not this Blueprint's
	case d.gvr.Empty() && !d.ending:
		return d.running, nil, nil // the type is unknown yet
	case d.ending && (!d.deletes(b) || d.gvr.Empty()):
		return nil, nil, nil
	case d.ending || d.lacksConsent():
		return cleaning, nil, nil
	}
	if d.program != nil && newest != nil && newest.Name == d.program.revision {
		return d.program, nil, nil
	}
	// The newest generation is refused, or not stored yet: the one before remains served.
	if !d.onlyCleans() && (d.refusal == nil || h.has(b.UID, d.running.revision)) || d.refusal == nil && newest == nil {
		return d.running, nil, nil
	}
	if newest != nil {
		// This is repeated on each call, because a missing permission or type may have been added.
		loaded, missing, err := p.load(ctx, b, own, newest)
		if err != nil || loaded.program != nil {
			return loaded.program, missing, err
		}
		d.loadRefusal = loaded.refusal
		return cleaning, missing, nil
	}
	return cleaning, nil, nil
}

// reportsServing reports whether, according to its status, the Blueprint is served or has instances. A version of the platform
// that stored no revisions and required no consent may have served it. Its instances can have the platform's finalizer,
// which nothing else removes. The status of a Blueprint that was never served reports neither. This must only be used to
// decide whether to clean up, because a status does not prove that the platform wrote it.
func reportsServing(b *blueprint.Blueprint) bool {
	return b.Status.Instances != nil && b.Status.Instances.Total > 0 || meta.IsStatusConditionTrue(b.Status.Conditions, blueprint.Serving)
}

// servedField returns status.served.
func servedField(d decision) map[string]any {
	if d.onlyCleans() {
		return nil
	}
	return map[string]any{"generation": d.running.generation, "revision": d.running.revision}
}
