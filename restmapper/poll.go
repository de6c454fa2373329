package restmapper

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// poll reads the discovery documents once the watches have listed, then slowly again and again.
func (m *Mapper) poll(ctx context.Context) {
	select {
	case <-m.listed:
	case <-ctx.Done():
		return
	}
	retry := newRetry(longestRetry)
	for {
		began := time.Now()
		unexplained, err := m.readDocuments(ctx)
		if ctx.Err() != nil {
			return
		}
		m.setFailure(documents, err)
		wait := m.nextPoll()
		switch {
		case err != nil:
			m.log.V(1).Info("Cannot read the discovery documents, trying again", keyError, err)
			wait = min(wait, retry())
		case unexplained:
			wait = min(wait, settleTime)
			fallthrough
		default:
			retry = newRetry(longestRetry)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-m.reset:
			timer.Stop()
			// A caller that resets at each kind that it does not find must not become a load.
			select {
			case <-after(ctx, resetPeriod-time.Since(began)):
			case <-ctx.Done():
				return
			}
		}
	}
}

// nextPoll spreads the polls of many replicas.
func (m *Mapper) nextPoll() time.Duration {
	const spread = 0.2
	return time.Duration(float64(m.pollPeriod) * (1 + spread*(2*rand.Float64()-1)))
}

// readDocuments reads both documents, and syncs the mapper with the first success of both.
func (m *Mapper) readDocuments(ctx context.Context) (unexplained bool, err error) {
	for _, path := range []string{"/api", "/apis"} {
		document, etag, err := m.discoverer.document(ctx, path, m.belongsToCRDs)
		if err != nil {
			return false, err
		}
		if document != nil && m.takeDocument(path == "/api", document) {
			unexplained = true
		}
		if etag != "" {
			m.discoverer.etags[path] = etag
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.syncLocked()
	return unexplained, nil
}

func (m *Mapper) belongsToCRDs(gv schema.GroupVersion) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.world.belongsToCRDs(gv)
}

func (m *Mapper) takeDocument(core bool, document []documentVersion) (unexplained bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	groups, alone, unexplained := m.world.setDocument(core, document)
	for _, gv := range alone {
		m.readLocked(gv)
	}
	m.publishLocked(groups)
	return unexplained
}

// readAlone reads single versions, each in a goroutine of its own until it has answered: one whose server hangs keeps
// nobody waiting.
func (m *Mapper) readAlone(ctx context.Context) {
	var readers sync.WaitGroup
	defer readers.Wait()
	var mu sync.Mutex // guards reading
	// reading has a channel for each version that is being read, which holds a request to do it now.
	reading := map[schema.GroupVersion]chan struct{}{}
	for {
		m.mu.Lock()
		asked := m.toRead
		m.toRead = map[schema.GroupVersion]bool{}
		m.mu.Unlock()
		for gv := range asked {
			mu.Lock()
			now, isReading := reading[gv]
			if isReading {
				signal(now)
			} else {
				now = make(chan struct{}, 1)
				reading[gv] = now
			}
			mu.Unlock()
			if isReading {
				continue
			}
			readers.Go(func() {
				m.readVersion(ctx, gv, now)
				mu.Lock()
				delete(reading, gv)
				mu.Unlock()
				m.askAgain(gv)
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		}
	}
}

// askAgain is for a version that was asked for just as its reader ended, or as Run did.
func (m *Mapper) askAgain(gv schema.GroupVersion) {
	if _, ok := m.askedFor(gv); ok {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.readLocked(gv)
	}
}

// readVersion tries until the version answers, or is none of discovery's any more.
func (m *Mapper) readVersion(ctx context.Context, gv schema.GroupVersion, now <-chan struct{}) {
	retry := newRetry(longestVersionRetry)
	for ctx.Err() == nil {
		asked, ok := m.askedFor(gv)
		if !ok {
			return
		}
		resources, err := m.discoverer.version(ctx, gv)
		if ctx.Err() != nil {
			return
		}
		m.takeVersion(gv, asked, resources, err)
		if err == nil {
			retry = newRetry(longestVersionRetry)
			continue
		}
		m.log.V(1).Info("Discovery of a version failed, its last answer stays", keyGroupVersion, gv.String(), keyError, err)
		select {
		case <-after(ctx, retry()):
		case <-now:
		}
	}
}

// longestVersionRetry makes a version whose server is gone for good cost two requests a minute.
const longestVersionRetry = 30 * time.Second

// askedFor tells whether the version must still be read, and for the how many-th time.
func (m *Mapper) askedFor(gv schema.GroupVersion) (asked int, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.world.discovered[gv.Group][gv.Version]
	if d == nil || d.answered >= d.asked {
		return 0, false
	}
	return d.asked, true
}

func (m *Mapper) takeVersion(gv schema.GroupVersion, asked int, resources []*resource, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.world.discovered[gv.Group][gv.Version]
	if d == nil {
		return
	}
	if err != nil {
		d.err = err
		return
	}
	d.answered = asked
	if d.set(resources) {
		m.publishLocked(touchedGroups{gv.Group: {whole: true}})
	}
}
