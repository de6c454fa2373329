package acceptance

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
)

// decisionLog logs the changes of decisions. Every replica makes decisions, but only the leader logs them.
type decisionLog struct {
	mu        sync.Mutex
	decisions map[string]decision // the last logged decisions by Blueprint name; guarded by mu
}

// log logs the difference between a decision and the one that this process has logged before.
func (l *decisionLog) log(ctx context.Context, name string, next decision) {
	l.mu.Lock()
	before := l.decisions[name]
	l.decisions[name] = next
	l.mu.Unlock()
	logChanges(logr.FromContextOrDiscard(ctx), name, before, next)
}

// forget logs that the type of a deleted Blueprint has been released, and discards its decision.
func (l *decisionLog) forget(ctx context.Context, name string) {
	l.log(ctx, name, decision{})
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.decisions, name)
}

// logChanges logs the changes since the previous decision.
func logChanges(log logr.Logger, name string, before, next decision) {
	log = log.WithValues(keyBlueprint, name)
	if next.generation != 0 {
		log = log.WithValues(keyGeneration, next.generation)
	}
	isNew := func(before, next *rejection) bool { return next != nil && (before == nil || *before != *next) }
	if isNew(before.loadRejection, next.loadRejection) {
		log.Info("Stored revision rejected", keyReason, next.loadRejection.reason, keyProblem, next.loadRejection.message)
	}
	if next.olderProblem != "" && next.olderProblem != before.olderProblem {
		log.Info("Older revision not loaded; its instances are not reconciled", keyProblem, next.olderProblem)
	}
	if before.running != nil && (next.running == nil || next.running.GVR != before.running.GVR) {
		log.Info("Type released", keyType, nameOf(before.running.GVR))
	}
	switch {
	case isNew(before.rejection, next.rejection):
		log.Info("Blueprint rejected", keyReason, next.rejection.reason, keyProblem, next.rejection.message)
	case next.running != nil && (before.running == nil || before.running.inputs != next.running.inputs):
		log.Info("Blueprint served", keyType, nameOf(next.running.GVR))
	}
}
