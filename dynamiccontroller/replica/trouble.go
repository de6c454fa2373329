package replica

import (
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The verbs of requests for the Lease, and its resource. RBAC rules name them.
const (
	verbGet       = "get"
	verbCreate    = "create"
	verbUpdate    = "update"
	leaseResource = "leases.coordination.k8s.io"
)

// trouble tracks failures to read or write the Lease. It logs the first failure and the recovery, but no failures in
// between.
type trouble struct {
	since  time.Time       // time of the first of several failures in a row, zero if the last request succeeded
	failed string          // the verb of that request
	denied map[string]bool // verbs
}

// note records the outcome of a request. It returns nil if the request did not fail. A missing lease and a conflict
// with another replica do not count as failures.
func (t *trouble) note(log logr.Logger, verb string, err error) error {
	switch {
	case denied(err):
		if !t.denied[verb] {
			if t.denied == nil {
				t.denied = map[string]bool{}
			}
			t.denied[verb] = true
			log.Error(err, "Permission missing, this replica cannot lead", keyVerb, verb, keyResource, leaseResource)
		}
		t.answered(log)
		return err
	case terminating(err):
		t.allowed(log, verb)
	case err == nil, apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err) && verb != verbCreate:
		t.allowed(log, verb)
		// A missing lease does not end a series of failures to create it.
		if !apierrors.IsNotFound(err) || t.failed != verbCreate {
			t.answered(log)
		}
		return nil
	}
	if t.since.IsZero() {
		t.since, t.failed = time.Now(), verb
		log.Info("a request for the lease failed, and is tried again", keyVerb, verb, keyError, err.Error())
	}
	return err
}

// denied reports whether the request was denied because permissions or credentials are missing.
func denied(err error) bool {
	return apierrors.IsForbidden(err) && !terminating(err) || apierrors.IsUnauthorized(err)
}

// terminating reports whether an object was not created because its namespace is being deleted. The API server returns
// Forbidden in this case too, after it has authorized the request.
func terminating(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

func (t *trouble) allowed(log logr.Logger, verb string) {
	if t.denied[verb] {
		delete(t.denied, verb)
		log.Info("Permission granted", keyVerb, verb)
	}
}

func (t *trouble) answered(log logr.Logger) {
	if !t.since.IsZero() {
		log.Info("requests for the lease are answered again", keyAfter, time.Since(t.since).Round(time.Millisecond).String())
		t.since, t.failed = time.Time{}, ""
	}
}
