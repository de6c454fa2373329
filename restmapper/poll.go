package restmapper

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// resetPeriod is the minimum time between requests that are caused by Reset.
	resetPeriod = 10 * time.Second
	// maxPollPeriodWithoutCRDs limits the poll period while CRDs cannot be listed. A poll that finds no changes costs two
	// small requests.
	maxPollPeriodWithoutCRDs = 30 * time.Second
	// firstReadTimeout limits how long versions that must be read separately can delay the first sync.
	firstReadTimeout = 5 * time.Second
)

// poll reads the discovery documents once both watches have listed their objects, and then periodically until ctx is
// cancelled.
func (m *Mapper) poll(ctx context.Context) {
	if !m.waitForLists(ctx) {
		return
	}
	retry := newRetry(maxRequestDelay)
	var asked *refresh // the request for this poll, or nil
	for {
		requested := time.Now()
		err := m.pollOnce(ctx, requested)
		if ctx.Err() != nil {
			return
		}
		asked.end(err)
		due := time.Now().Add(m.nextPeriod())
		if err != nil {
			due = earlier(due, time.Now().Add(retry()))
		} else {
			retry = newRetry(maxRequestDelay)
		}
		var ok bool
		if asked, ok = m.waitForPoll(ctx, requested, due, err == nil); !ok {
			return
		}
	}
}

// pollOnce reads the discovery documents. After the first success, the mapper has synced.
func (m *Mapper) pollOnce(ctx context.Context, requested time.Time) error {
	err := m.readDocuments(ctx, requested)
	if ctx.Err() != nil {
		return err
	}
	m.setFailure(SourceDiscovery, schema.GroupVersion{}, err)
	if err != nil {
		return err
	}
	m.waitForFirstReads(ctx)
	if ctx.Err() == nil {
		m.setSynced()
	}
	return nil
}

// nextPeriod returns the time until the next poll.
func (m *Mapper) nextPeriod() time.Duration {
	const spread = 0.2
	longest := m.longestPeriod()
	period := float64(longest) * (1 + spread*(2*rand.Float64()-1))
	if period >= math.MaxInt64 {
		return longest
	}
	return time.Duration(period)
}

// longestPeriod returns the poll period. It is limited while polls are the only way to find CRDs.
func (m *Mapper) longestPeriod() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.catalog.crdRefusal != nil {
		return min(m.pollPeriod, maxPollPeriodWithoutCRDs)
	}
	return m.pollPeriod
}

// waitForPoll returns true when the documents, which were last requested at the given time, must be read again. If this
// is because of a request, it returns the request. It returns false if ctx is cancelled.
func (m *Mapper) waitForPoll(
	ctx context.Context, requested, due time.Time, canCheck bool,
) (asked *refresh, ok bool) {
	for {
		next := due
		if canCheck {
			next = m.nextCheck(requested, due)
		}
		delay := time.Until(next)
		if delay <= 0 {
			return nil, ctx.Err() == nil
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-m.reset:
			// Some callers may call Reset for every kind that they do not find.
			due = earlier(due, requested.Add(resetPeriod))
		case asked = <-m.documents:
			timer.Stop()
			return asked, true
		case <-ctx.Done():
			timer.Stop()
			return nil, false
		}
		timer.Stop()
	}
}

// nextCheck returns the time of the next check of the documents, given the time at which they were last requested. The
// result is not later than due.
func (m *Mapper) nextCheck(requested, due time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if check := m.catalog.nextCheck(requested); !check.IsZero() {
		return earlier(check, due)
	}
	return due
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// readDocuments reads both discovery documents.
func (m *Mapper) readDocuments(ctx context.Context, requested time.Time) error {
	m.discoverer.forgetBefore(m.beginDocuments(requested))
	isExcluded := func(gv schema.GroupVersion) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.catalog.isExcluded(gv)
	}
	for _, path := range []string{corePath, groupsPath} {
		document, etag, err := m.discoverer.document(ctx, path, isExcluded)
		if err != nil {
			return err
		}
		if document == nil {
			continue // not modified
		}
		if isIncomplete := m.setDocument(path == corePath, document, requested); isIncomplete {
			etag = ""
		}
		m.discoverer.etags[path] = etag
	}
	return nil
}

// beginDocuments removes expired tombstones, and returns the current epoch of the documents.
func (m *Mapper) beginDocuments(now time.Time) (epoch int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.catalog.tombstones.expireAll(now)
	return m.catalog.epoch()
}

func (m *Mapper) setDocument(core bool, document []documentVersion, requested time.Time) (isIncomplete bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	groups, unread, isIncomplete := m.catalog.setDocument(core, document, requested)
	for _, gv := range unread {
		m.requestReadLocked(gv)
	}
	m.publishLocked(groups)
	return isIncomplete
}

// waitForFirstReads delays the first sync until each version that must be read separately has been read or has failed.
func (m *Mapper) waitForFirstReads(ctx context.Context) {
	if m.HasSynced() {
		return
	}
	timeout := time.NewTimer(firstReadTimeout)
	defer timeout.Stop()
	for m.isAwaiting() {
		select {
		case <-m.read:
		case <-timeout.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (m *Mapper) isAwaiting() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, versions := range m.catalog.discovered {
		for _, d := range versions {
			if d.awaited {
				return true
			}
		}
	}
	return false
}
