package restmapper

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// refusalPeriod is how long the first list of a type must be forbidden before the mapper syncs without the type. For a
// moment after its start, an API server can refuse requests because it has not read its RBAC objects yet.
const refusalPeriod = 5 * time.Second

// list is the state of the lists of CRDs or of APIServices.
type list struct {
	// isUsable is true once the objects have been listed, or the mapper has decided to sync without them.
	isUsable bool
	// refused is the time of the first of consecutive refusals. It is zero if the newest request was not refused.
	refused time.Time
}

// setResult records the result of a request. The mapper does not wait for a type that the API server does not have.
func (l *list) setResult(err error, now time.Time) {
	switch {
	case !apierrors.IsForbidden(err):
		l.refused = time.Time{}
		l.isUsable = l.isUsable || apierrors.IsNotFound(err)
	case l.refused.IsZero():
		l.refused = now
	case now.Sub(l.refused) >= refusalPeriod:
		l.isUsable = true
	}
}

func (m *Mapper) setListResultLocked(l *list, err error) {
	l.setResult(err, time.Now())
	signal(m.listChanged)
}

func (m *Mapper) setListedLocked(l *list) {
	l.isUsable = true
	signal(m.listChanged)
}

func (m *Mapper) setServiceResult(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.setListResultLocked(&m.serviceList, err)
}

// setCRDResult records the result of a request. After a refusal, and until the next list is complete, the mapper polls
// the discovery documents more often, and the versions of CRDs count as unread. The documents define the resources of
// CRDs that the watch has not delivered; see ownedByUnseenCRD.
func (m *Mapper) setCRDResult(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.setListResultLocked(&m.crdList, err)
	if !apierrors.IsForbidden(err) || m.catalog.crdRefusal != nil {
		return
	}
	groups := touchedGroups{}
	m.catalog.setCRDRefusal(err, groups)
	m.publishLocked(groups)
	if m.HasSynced() {
		signal(m.reset) // the current poll period can be long
	}
}

// waitForLists waits until both watches have listed their objects, so that the mapper can determine which versions
// belong to CRDs. It does not wait for objects that cannot be listed. It returns false if ctx is cancelled.
func (m *Mapper) waitForLists(ctx context.Context) bool {
	retried := map[*watcher]time.Time{}
	for {
		refused, isReady := m.refusedLists()
		if isReady {
			select {
			case <-m.listed:
			default:
				close(m.listed)
			}
			return ctx.Err() == nil
		}
		timer := time.NewTimer(refusalPeriod / 5)
		select {
		case <-m.listChanged:
		case <-timer.C:
			for w, since := range refused {
				// One more refusal is decisive. Without Wake, the delay before the next request could be long.
				if time.Since(since) >= refusalPeriod && !retried[w].Equal(since) {
					retried[w] = since
					w.loop.Wake()
				}
			}
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return false
		}
	}
}

// refusedLists reports whether the discovery documents can be read. Otherwise, it returns the watches that are refused,
// and since when.
func (m *Mapper) refusedLists() (refused map[*watcher]time.Time, isReady bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	refused = map[*watcher]time.Time{}
	for w, l := range map[*watcher]*list{m.crds: &m.crdList, m.services: &m.serviceList} {
		if !l.isUsable && !l.refused.IsZero() {
			refused[w] = l.refused
		}
	}
	return refused, m.crdList.isUsable && m.serviceList.isUsable
}
