package instances

import (
	"context"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

const (
	// settlePeriod is how long after a change of the schema instances are read from the API server. An API server closes
	// its watches of the type a second after it has received the new schema. Until then, events contain objects that were
	// read under the old one.
	settlePeriod = 30 * time.Second
	// schemaInterval is the delay before the next attempt to read an instance under the new schema.
	schemaInterval = 250 * time.Millisecond
)

// schemaReader makes sure that the templates of a revision are rendered only with instances that were read under the
// schema of the revision. When a revision with another schema is served, the cache still contains objects that were
// read under the previous schema: they lack new default values, for example. A relist replaces them, but their
// resourceVersions do not change. The type is also served by API servers that have not received the new schema yet.
//
// An instance is therefore read from the API server in two cases: if the instance in the cache cannot have been read
// under the schema, and during settlePeriod after a change of the schema, because not all differences can be detected.
// It is read again later if the result cannot have been read under the schema either. Otherwise, no requests are sent.
type schemaReader struct {
	revision Revision
	live     handlers.Reader
	settled  time.Time // the end of settlePeriod
	// differs is set if the API server still returns instances after settlePeriod that cannot have been read under the
	// schema, for example because others have changed the CustomResourceDefinition. All instances are then used.
	differs atomic.Bool
}

func newSchemaReader(live handlers.Reader, revision Revision, plan Rollout) *schemaReader {
	s := &schemaReader{revision: revision, live: live}
	switch before := plan.Replaces; {
	case revision.Compiled == nil:
	case before == nil || before.newest.Compiled == nil:
		if plan.HasPredecessor {
			s.settled = plan.Revision.Since.Add(settlePeriod)
		}
	case before.newest.Compiled.HasSchemaOf(revision.Compiled):
		s.settled = before.schema.settled
	default:
		s.settled = time.Now().Add(settlePeriod)
	}
	return s
}

// read returns the instance under the schema of the revision. self is the instance in the cache. The result is nil if
// the instance has been deleted, or if the error is set. The error is a requeue request if the API server does not use
// the schema yet.
func (s *schemaReader) read(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured, isBehind bool,
) (*unstructured.Unstructured, error) {
	compiled, settling := s.revision.Compiled, time.Now().Before(s.settled)
	if !settling && !isBehind && (s.differs.Load() || compiled.CanBeRead(self.Object)) {
		return self, nil
	}
	live, err := s.live.Get(ctx, id.GVR, id.Namespace(), id.Name())
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil // the event of the deletion causes another reconcile
	case err != nil:
		return nil, err
	case live.GetUID() == self.GetUID() && compiled.CanBeRead(live.Object):
		return live, nil
	case settling || live.GetUID() != self.GetUID():
		return nil, dynamiccontroller.RequeueAfter(schemaInterval)
	}
	s.differs.Store(true)
	return live, nil
}

// rendersFor reports whether a reconcile of the instance evaluates templates.
func (r *Reconciler) rendersFor(self *unstructured.Unstructured) bool {
	return r.Compiled != nil && self.GetDeletionTimestamp() == nil && r.pausedBy(self) == ""
}
