package decide

import (
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// create creates a child that is assumed not to exist. If the child does exist, the request fails with a conflict, and
// later attempts read the child from the API server. Admission or validation can reject the request before the API
// server compares the versions. After such an error, create therefore reads the child.
func (d *childDecision) create() (*unstructured.Unstructured, error) {
	if err := d.mayCreateAgain(); err != nil {
		return nil, err
	}
	if !d.facts.ParentExists {
		answer := d.ask(Operation{Kind: MayCreate, Reason: "nothing would delete the child of a parent that is gone"})
		if answer.Err != nil {
			return nil, answer.Err
		}
		d.facts.ParentExists, d.facts.Unrecorded = true, answer.Unrecorded
	}
	if err := d.checkCreate(); err != nil {
		return nil, err
	}
	d.config = d.Template
	metadata := map[string]any{"resourceVersion": createOnlyVersion}
	if d.known.recreation.pending { // limits recreations across changes of the leader
		metadata["annotations"] = d.annotations(map[string]string{d.parent.Recreated(): d.Hash})
	}
	now, err := d.apply(Create, "the child does not exist", d.config, metadata)
	if err == nil {
		return now, d.created()
	}
	if apierrors.IsConflict(err) {
		d.known.reset()
		d.known.exists = true
	}
	if apierrors.IsForbidden(err) || isSecondController(err) || isUnexplained(err) {
		current, readErr := d.readAgain("a refused creation does not show whether the child exists")
		if readErr == nil && current != nil {
			return d.applyTo(current)
		}
	}
	return now, d.judge(nil, err)
}

// checkCreate returns an error if the child must not be created.
func (d *childDecision) checkCreate() error {
	if d.facts.Unrecorded != nil {
		return d.facts.Unrecorded
	}
	return d.facts.Unwitnessed
}

// mayCreateAgain returns a DriftError if other clients delete the child whenever it exists, and it must not be created
// again yet.
func (d *childDecision) mayCreateAgain() error {
	if !d.known.fights.exists {
		return nil
	}
	if wait := d.known.fights.creations(d.now).wait(); wait > 0 {
		return d.deletedAgain(wait)
	}
	return nil
}

// created sets the outcome of a child that has been created. It returns a DriftError if the child will probably be
// deleted again: although it exists now, it does not stay in its desired state.
func (d *childDecision) created() error {
	d.outcome, d.known.recreation.pending = Created, false
	again := d.known.fights.exists
	d.known.fights.exists, d.known.fights.contested = true, nil
	if !again {
		return nil
	}
	budget := d.known.fights.creations(d.now)
	budget.take()
	if wait := budget.wait(); wait > 0 {
		return d.deletedAgain(wait)
	}
	if d.deletesItself() {
		return d.deletedAgain(budget.period)
	}
	return nil
}

func (d *childDecision) deletedAgain(wait time.Duration) error {
	advice := "stop the client that deletes it"
	if d.deletesItself() {
		advice = "remove spec.ttlSecondsAfterFinished from the template: Kubernetes deletes the Job when it has " +
			"finished, and it runs again"
	}
	return &DriftError{Gone: advice, Wait: wait, period: d.known.fights.creations(d.now).period}
}

// apply applies a configuration with additional metadata, and remembers what was applied.
func (d *childDecision) apply(
	kind Kind, reason Reason, config *unstructured.Unstructured, metadata map[string]any,
) (*unstructured.Unstructured, error) {
	applied, err := withMetadata(config, metadata)
	if err != nil {
		return nil, err
	}
	answer := d.ask(Operation{
		Kind: kind, Reason: reason, Object: applied, Manager: d.manager(), Force: kind == Apply,
		Takes: kind == Apply && d.takes,
	})
	if answer.Err != nil {
		return nil, fmt.Errorf("apply: %w", answer.Err)
	}
	if err := d.remember(config, answer.Object); err != nil {
		return nil, err
	}
	return answer.Object, nil
}

// withMetadata returns a copy of a configuration with additional metadata.
func withMetadata(config *unstructured.Unstructured, metadata map[string]any) (*unstructured.Unstructured, error) {
	config = config.DeepCopy()
	for field, value := range metadata {
		if err := unstructured.SetNestedField(config.Object, value, "metadata", field); err != nil {
			return nil, err
		}
	}
	return config, nil
}

// annotations returns the annotations of the child together with others.
func (d *childDecision) annotations(others map[string]string) map[string]any {
	all := map[string]any{}
	for key, value := range d.config.GetAnnotations() {
		all[key] = value
	}
	for key, value := range others {
		all[key] = value
	}
	return all
}
