package replica

import (
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The verbs of requests for the Lease, and the Lease's resource, as they appear in RBAC rules.
const (
	verbGet       = "get"
	verbCreate    = "create"
	verbUpdate    = "update"
	leaseResource = "leases.coordination.k8s.io"
)

// leaseErrors tracks failed requests for the Lease. It logs the first failure and the recovery, but not the failures in
// between.
type leaseErrors struct {
	since           time.Time       // time of the first consecutive failure, zero if the last request succeeded
	failed          string          // the verb of the first failed request
	denied          map[string]bool // verbs for which permission is missing
	unauthenticated bool            // the API server rejected the credentials
}

// record records the outcome of a request. It returns nil if the request did not fail. A missing lease and a conflict
// with another replica do not count as failures.
func (e *leaseErrors) record(log logr.Logger, verb string, err error) error {
	switch {
	case apierrors.IsUnauthorized(err):
		if !e.unauthenticated {
			e.unauthenticated = true
			log.Error(err, "Credentials rejected, this replica cannot lead", keyVerb, verb, keyResource, leaseResource)
		}
		e.since, e.failed = time.Time{}, "" // the series of other failures has ended
		return err
	case isDenied(err):
		e.recordAuthentication(log)
		if !e.denied[verb] {
			if e.denied == nil {
				e.denied = map[string]bool{}
			}
			e.denied[verb] = true
			log.Error(err, "Permission missing, this replica cannot lead", keyVerb, verb, keyResource, leaseResource)
		}
		e.since, e.failed = time.Time{}, ""
		return err
	case isTerminating(err):
		e.recordPermission(log, verb)
	case err == nil, apierrors.IsConflict(err), apierrors.IsAlreadyExists(err),
		apierrors.IsNotFound(err) && verb != verbCreate:
		e.recordPermission(log, verb)
		// A missing lease does not end a series of failures to create it.
		if !apierrors.IsNotFound(err) || e.failed != verbCreate {
			e.recordRecovery(log)
		}
		return nil
	}
	if e.since.IsZero() {
		e.since, e.failed = time.Now(), verb
		log.Info("Lease request failed, will retry", keyVerb, verb, keyError, err.Error())
	}
	return err
}

// isDenied reports whether the request was denied because a permission is missing.
func isDenied(err error) bool { return apierrors.IsForbidden(err) && !isTerminating(err) }

// isTerminating reports whether an object was not created because its namespace is being deleted. The API server
// returns Forbidden in this case too, after it has authorized the request.
func isTerminating(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

func (e *leaseErrors) recordAuthentication(log logr.Logger) {
	if e.unauthenticated {
		e.unauthenticated = false
		log.Info("Credentials accepted")
	}
}

func (e *leaseErrors) recordPermission(log logr.Logger, verb string) {
	e.recordAuthentication(log)
	if e.denied[verb] {
		delete(e.denied, verb)
		log.Info("Permission granted", keyVerb, verb)
	}
}

func (e *leaseErrors) recordRecovery(log logr.Logger) {
	if !e.since.IsZero() {
		log.Info("Lease requests succeed again", keyAfter, time.Since(e.since).Round(time.Millisecond).String())
		e.since, e.failed = time.Time{}, ""
	}
}
