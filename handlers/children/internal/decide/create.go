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
func (l *life) create() (*unstructured.Unstructured, error) {
	if err := l.mayCreateAgain(); err != nil {
		return nil, err
	}
	if !l.facts.ParentExists {
		answer := l.ask(Operation{Kind: MayCreate, Reason: "nothing would delete the child of a parent that is gone"})
		if answer.Err != nil {
			return nil, answer.Err
		}
		l.facts.ParentExists, l.facts.Unrecorded = true, answer.Unrecorded
	}
	if err := l.checkCreate(); err != nil {
		return nil, err
	}
	l.config = l.Template
	metadata := map[string]any{"resourceVersion": createOnlyVersion}
	if l.known.recreation.pending { // limits recreations across changes of the leader
		metadata["annotations"] = l.annotations(map[string]string{l.parent.Recreated(): l.Hash})
	}
	now, err := l.apply(Create, "the child does not exist", l.config, metadata)
	if err == nil {
		return now, l.created()
	}
	if apierrors.IsConflict(err) {
		l.known.reset()
		l.known.exists = true
	}
	if apierrors.IsForbidden(err) || isSecondController(err) || isUnexplained(err) {
		current, readErr := l.readAgain("a refused creation does not show whether the child exists")
		if readErr == nil && current != nil {
			return l.applyTo(current)
		}
	}
	return now, l.judge(nil, err)
}

// checkCreate returns an error if the child must not be created.
func (l *life) checkCreate() error {
	if l.facts.Unrecorded != nil {
		return l.facts.Unrecorded
	}
	return l.facts.Unwitnessed
}

// mayCreateAgain returns a DriftError if other clients delete the child whenever it exists, and it must not be created
// again yet.
func (l *life) mayCreateAgain() error {
	if !l.known.fights.exists {
		return nil
	}
	if wait := l.known.fights.creations(l.now).wait(); wait > 0 {
		return l.deletedAgain(wait)
	}
	return nil
}

// created sets the outcome of a child that has been created. It returns a DriftError if the child will probably be
// deleted again: although it exists now, it does not stay in its desired state.
func (l *life) created() error {
	l.outcome, l.known.recreation.pending = Created, false
	again := l.known.fights.exists
	l.known.fights.exists, l.known.fights.contested = true, nil
	if !again {
		return nil
	}
	budget := l.known.fights.creations(l.now)
	budget.take()
	if wait := budget.wait(); wait > 0 {
		return l.deletedAgain(wait)
	}
	if l.deletesItself() {
		return l.deletedAgain(budget.period)
	}
	return nil
}

func (l *life) deletedAgain(wait time.Duration) error {
	advice := "stop the client that deletes it"
	if l.deletesItself() {
		advice = "remove spec.ttlSecondsAfterFinished from the template: Kubernetes deletes the Job when it has " +
			"finished, and it runs again"
	}
	return &DriftError{Gone: advice, Wait: wait, period: l.known.fights.creations(l.now).period}
}

// apply applies a configuration with additional metadata, and remembers what was applied.
func (l *life) apply(
	kind Kind, reason Reason, config *unstructured.Unstructured, metadata map[string]any,
) (*unstructured.Unstructured, error) {
	applied, err := withMetadata(config, metadata)
	if err != nil {
		return nil, err
	}
	answer := l.ask(Operation{
		Kind: kind, Reason: reason, Object: applied, Manager: l.manager(), Force: kind == Apply,
		Takes: kind == Apply && l.takes,
	})
	if answer.Err != nil {
		return nil, fmt.Errorf("apply: %w", answer.Err)
	}
	if err := l.remember(config, answer.Object); err != nil {
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
func (l *life) annotations(others map[string]string) map[string]any {
	all := map[string]any{}
	for key, value := range l.config.GetAnnotations() {
		all[key] = value
	}
	for key, value := range others {
		all[key] = value
	}
	return all
}
