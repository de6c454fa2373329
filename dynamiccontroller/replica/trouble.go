package replica

import (
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The verbs of the requests for the lease, which are the rights that they need.
const (
	verbGet    = "get"
	verbCreate = "create"
	verbUpdate = "update"
)

// trouble is what keeps the lease from being read or written. It is logged when it begins and when it ends, and not with
// every try.
type trouble struct {
	since  time.Time       // when the first of the requests failed that have failed in a row, zero if the last did not
	denied map[string]bool // verbs
}

// note takes what came of a request, and returns the error if that is one to be told of: that there is no lease, and that
// another replica was quicker, are answers like others.
func (t *trouble) note(log logr.Logger, verb string, err error) error {
	switch {
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		if !t.denied[verb] {
			if t.denied == nil {
				t.denied = map[string]bool{}
			}
			t.denied[verb] = true
			log.Error(err, "this replica cannot lead without a right that it lacks", keyVerb, verb, keyResource, "leases.coordination.k8s.io")
		}
		t.answered(log)
		return err
	case err == nil, apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err) && verb != verbCreate:
		if t.denied[verb] {
			delete(t.denied, verb)
			log.Info("this replica has the right that it lacked", keyVerb, verb)
		}
		t.answered(log)
		return nil
	}
	if t.since.IsZero() {
		t.since = time.Now()
		log.Info("a request for the lease failed, and is tried again", keyVerb, verb, keyError, err.Error())
	}
	return err
}

func (t *trouble) answered(log logr.Logger) {
	if !t.since.IsZero() {
		log.Info("requests for the lease are answered again", keyAfter, time.Since(t.since).Round(time.Millisecond).String())
		t.since = time.Time{}
	}
}
