package children

import (
	"time"

	"golang.org/x/time/rate"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// fights limits what is done again for one child because other clients undo it. The limiters are nil before their first
// use.
type fights struct {
	corrected, protected, created *rate.Limiter
	// exists is set while the child exists because this run has created it, as far as the run has not deleted it.
	exists bool
	// contested contains the fields that other clients have changed, by their paths. It can be nil.
	contested map[string]*contested
}

// budget allows several attempts at once, and then one per period.
type budget struct {
	*rate.Limiter
	period time.Duration
}

// corrections is the budget for fields that other clients change.
func (f *fights) corrections() budget { return budgetOf(&f.corrected, 5, 10*time.Second) }

// protections is the budget for what protects others: permissions, network policies, and the marks and owner references
// without which the object would not belong to its parent.
func (f *fights) protections() budget { return budgetOf(&f.protected, 50, time.Second) }

// protect takes a token from the budget of protections. It returns a driftError if the budget is used up.
func (f *fights) protect(field string) error {
	budget := f.protections()
	if wait := budget.wait(); wait > 0 {
		return &driftError{field: field, wait: wait, period: budget.period}
	}
	budget.Allow()
	return nil
}

// creations is the budget for creating a child that this run has already created.
func (f *fights) creations() budget { return budgetOf(&f.created, 5, 10*time.Second) }

func budgetOf(limiter **rate.Limiter, burst int, period time.Duration) budget {
	if *limiter == nil {
		*limiter = rate.NewLimiter(rate.Every(period), burst)
	}
	return budget{*limiter, period}
}

// wait returns the time until the budget allows the next attempt.
func (b budget) wait() time.Duration {
	return time.Duration(max(0, 1-b.Tokens()) * float64(b.period))
}

// checkDeletions returns a driftError if other clients delete the child whenever it exists, and it must not be created
// again yet.
func (d *child) checkDeletions() error {
	if !d.entry.fights.exists {
		return nil
	}
	if wait := d.entry.fights.creations().wait(); wait > 0 {
		return d.deletedAgain(wait)
	}
	return nil
}

// created sets the outcome of a child that has been created. It returns a driftError if the child will probably be
// deleted again: although it exists now, it does not stay in its desired state.
func (d *child) created() error {
	d.result.Outcome, d.entry.recreation.pending = Created, false
	again := d.entry.fights.exists
	d.entry.fights.exists, d.entry.fights.contested = true, nil
	if !again {
		return nil
	}
	budget := d.entry.fights.creations()
	budget.Allow()
	if wait := budget.wait(); wait > 0 {
		return d.deletedAgain(wait)
	}
	if d.deletesItself() {
		return d.deletedAgain(budget.period)
	}
	return nil
}

func (d *child) deletedAgain(wait time.Duration) error {
	advice := "stop the client that deletes it"
	if d.deletesItself() {
		advice = "remove spec.ttlSecondsAfterFinished from the template: Kubernetes deletes the Job when it has " +
			"finished, and it runs again"
	}
	return &driftError{gone: advice, wait: wait, period: d.entry.fights.creations().period}
}

// deletesItself reports whether Kubernetes deletes the child when it has finished.
func (d *child) deletesItself() bool {
	_, has, _ := unstructured.NestedFieldNoCopy(d.config.Object, "spec", "ttlSecondsAfterFinished")
	return has && d.kind == batchv1.SchemeGroupVersion.WithKind("Job").GroupKind()
}
