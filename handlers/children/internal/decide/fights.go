package decide

import (
	"fmt"
	"time"

	"golang.org/x/time/rate"
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
	now    time.Time
}

// corrections is the budget for fields that other clients change.
func (f *fights) corrections(now time.Time) budget {
	return budgetOf(&f.corrected, 5, 10*time.Second, now)
}

// protections is the budget for what protects others: permissions, network policies, and the marks and owner references
// without which the object would not belong to its parent.
func (f *fights) protections(now time.Time) budget {
	return budgetOf(&f.protected, 50, time.Second, now)
}

// creations is the budget for creating a child that this run has already created.
func (f *fights) creations(now time.Time) budget {
	return budgetOf(&f.created, 5, 10*time.Second, now)
}

// protect takes a token from the budget of protections. It returns a DriftError if the budget is used up.
func (f *fights) protect(field string, now time.Time) error {
	budget := f.protections(now)
	if wait := budget.wait(); wait > 0 {
		return &DriftError{Field: field, Wait: wait, period: budget.period}
	}
	budget.take()
	return nil
}

func budgetOf(limiter **rate.Limiter, burst int, period time.Duration, now time.Time) budget {
	if *limiter == nil {
		*limiter = rate.NewLimiter(rate.Every(period), burst)
	}
	return budget{*limiter, period, now}
}

// wait returns the time until the budget allows the next attempt.
func (b budget) wait() time.Duration {
	return time.Duration(max(0, 1-b.TokensAt(b.now)) * float64(b.period))
}

// take takes a token, if there is one.
func (b budget) take() { b.AllowN(b.now, 1) }

// DriftError is returned if other clients undo again and again what Reconcile does, so that it waits.
type DriftError struct {
	Field   string        // the first field that differs, such as "spec.replicas"; a list is named as a whole
	Manager string        // the field manager that changed the field last, or empty if it is not known
	Gone    string        // why the child is deleted again and again, or empty if it is changed
	Wait    time.Duration // until the next attempt
	period  time.Duration // of the budget
}

// Error names the field and the manager, or says that the child is deleted.
func (e *DriftError) Error() string {
	if e.Gone != "" {
		return fmt.Sprintf("the object is deleted again and again; it is created at most once in %s; %s", e.period, e.Gone)
	}
	manager := "another client"
	if e.Manager != "" {
		manager = fmt.Sprintf("field manager %q", e.Manager)
	}
	return fmt.Sprintf("field %s is changed again and again by %s; it is corrected at most once in %s; "+
		"let others set it (keepExisting), remove it from the template, or stop the other client", e.Field, manager, e.period)
}
