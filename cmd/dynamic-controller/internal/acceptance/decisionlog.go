package acceptance

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// decisionLog logs changes in decisions. Every replica makes decisions, but only the leader logs them.
type decisionLog struct {
	mu     sync.Mutex
	logged map[string]loggedDecision // by Blueprint name, of this term; guarded by mu
}

// loggedDecision contains the parts of a decision that are logged. It does not retain compiled programs.
type loggedDecision struct {
	rejection, loadRejection rejection // empty without a rejection
	olderProblem             string
	served                   schema.GroupVersionResource // empty if nothing is served
	inputs                   string                      // of the served revision
}

// logged returns the parts of a decision that are logged.
func (d decision) logged() loggedDecision {
	l := loggedDecision{olderProblem: d.olderProblem}
	if rejected := d.rejected(); rejected != nil {
		l.rejection = *rejected
	}
	if d.loadRejection != nil {
		l.loadRejection = *d.loadRejection
	}
	if d.running != nil {
		l.served, l.inputs = d.running.GVR, d.running.inputs
	}
	return l
}

// log logs how a decision differs from the last one that was logged in this term.
func (l *decisionLog) log(ctx context.Context, name string, d decision) {
	next := d.logged()
	l.mu.Lock()
	before := l.logged[name]
	l.logged[name] = next
	l.mu.Unlock()
	log := logr.FromContextOrDiscard(ctx).WithValues(keyBlueprint, name)
	if d.generation != 0 {
		log = log.WithValues(keyGeneration, d.generation)
	}
	logChanges(log, before, next)
}

// forget logs that the type of a deleted Blueprint has been released, and discards its decision.
func (l *decisionLog) forget(ctx context.Context, name string) {
	l.log(ctx, name, decision{})
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.logged, name)
}

// reset discards all decisions. The next term logs them again.
func (l *decisionLog) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.logged)
}

// logChanges logs the changes since the previous decision.
func logChanges(log logr.Logger, before, next loggedDecision) {
	isNew := func(before, next rejection) bool { return next != rejection{} && next != before }
	if isNew(before.loadRejection, next.loadRejection) {
		log.Info("Stored revision rejected", keyReason, next.loadRejection.reason, keyProblem, next.loadRejection.message)
	}
	if next.olderProblem != "" && next.olderProblem != before.olderProblem {
		log.Info("Older revision not loaded; its instances are not reconciled", keyProblem, next.olderProblem)
	}
	if !before.served.Empty() && next.served != before.served {
		log.Info("Type released", keyType, nameOf(before.served))
	}
	switch {
	case isNew(before.rejection, next.rejection):
		log.Info("Blueprint rejected", keyReason, next.rejection.reason, keyProblem, next.rejection.message)
	case !next.served.Empty() && (next.served != before.served || next.inputs != before.inputs):
		log.Info("Blueprint served", keyType, nameOf(next.served))
	}
}
