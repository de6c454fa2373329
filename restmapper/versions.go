package restmapper

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxVersionDelay limits the delay before a version that failed is read again. A version whose server is permanently
// unavailable costs two requests per minute.
const maxVersionDelay = 30 * time.Second

// requestReadLocked requests a read of one version.
func (m *Mapper) requestReadLocked(gv schema.GroupVersion) {
	m.unread[gv] = true
	signal(m.wake)
}

// readVersions reads the versions in m.unread, each in its own goroutine, so that an unresponsive server does not delay
// other versions. While a version is being read, m.reading contains a channel for the version. A value sent on this
// channel ends the backoff.
func (m *Mapper) readVersions(ctx context.Context) {
	var readers sync.WaitGroup
	defer readers.Wait()
	for {
		for gv, retryNow := range m.takeUnread() {
			readers.Go(func() { m.readVersion(ctx, gv, retryNow) })
		}
		select {
		case <-m.wake:
		case <-ctx.Done():
			return
		}
	}
}

// takeUnread empties m.unread and returns the versions for which a reader must be started.
func (m *Mapper) takeUnread() map[schema.GroupVersion]<-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	started := map[schema.GroupVersion]<-chan struct{}{}
	for gv := range m.unread {
		if retryNow := m.reading[gv]; retryNow != nil {
			signal(retryNow)
			continue
		}
		retryNow := make(chan struct{}, 1)
		m.reading[gv], started[gv] = retryNow, retryNow
	}
	clear(m.unread)
	return started
}

// readVersion reads a version until all requests for it in the catalog have been answered.
func (m *Mapper) readVersion(ctx context.Context, gv schema.GroupVersion, retryNow <-chan struct{}) {
	log := m.log.WithValues(keySource, SourceDiscovery, keyGroupVersion, gv.String())
	retry, isFailing := newRetry(maxVersionDelay), false
	for {
		d, asked := m.nextRead(ctx, gv)
		if d == nil {
			return
		}
		resources, err := m.discoverer.version(ctx, gv)
		if ctx.Err() != nil {
			continue // nextRead ends this reader
		}
		m.setVersion(gv, d, asked, resources, err)
		if err == nil {
			if isFailing {
				log.Info("Discovery recovered")
			}
			retry, isFailing = newRetry(maxVersionDelay), false
			continue
		}
		if isFailing {
			log.V(1).Info("Discovery failed again, will retry", keyError, err.Error())
		} else {
			log.Info("Discovery failed, will retry", keyError, err.Error())
		}
		isFailing = true
		timer := time.NewTimer(retry())
		select {
		case <-timer.C:
		case <-retryNow:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// nextRead returns the version and the number of its newest request. If all requests have been answered, or ctx is
// cancelled, it removes the reader and returns nil. The next Run continues with the remaining requests.
func (m *Mapper) nextRead(ctx context.Context, gv schema.GroupVersion) (d *discovered, asked int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d = m.catalog.discovered[gv.Group][gv.Version]
	isAnswered := d == nil || d.answered >= d.asked
	if !isAnswered && ctx.Err() == nil {
		return d, d.asked
	}
	delete(m.reading, gv)
	if !isAnswered {
		m.requestReadLocked(gv)
	}
	return nil, 0
}

// setVersion stores the response to a request, unless the version has been removed in the meantime.
func (m *Mapper) setVersion(gv schema.GroupVersion, d *discovered, asked int, resources []*resource, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.catalog.discovered[gv.Group][gv.Version] != d {
		return
	}
	defer signal(m.read)
	d.attempted = asked
	wasRead := d.unreadError() == nil
	if err != nil {
		d.fail(gv, err, time.Now())
		m.publishLocked(touchedGroups{gv.Group: {}}) // lookups return the newest error
		return
	}
	byRefresh := d.answered < d.refreshed && d.refreshed <= asked
	d.answered = asked
	changed := d.set(resources)
	if byRefresh {
		d.readAt = time.Now()
		if changed {
			m.catalog.overruled++
		}
	}
	if changed || !wasRead {
		m.publishLocked(touchedGroups{gv.Group: {whole: changed}})
	}
}
