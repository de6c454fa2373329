package restmapper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// refreshPeriod is the minimum time between the beginnings of two refreshes.
const refreshPeriod = time.Second

// errRunEnded is the result of a refresh that was in progress when Run returned.
var errRunEnded = errors.New("the REST mapper has been stopped")

// refresh is a request by one or more callers of Refresh, or by a refresh for the discovery documents.
type refresh struct {
	done chan struct{} // closed after err has been set
	err  error
}

// end sets the result. A nil refresh is ignored.
func (r *refresh) end(err error) {
	if r != nil {
		r.err = err
		close(r.done)
	}
}

// Refresh returns nil when lookups reflect everything that the API server knew when Refresh was called: the CRDs, the
// APIServices, the discovery documents, and the resources of aggregated APIs, which are requested from their servers. A
// kind that was just defined is mapped if its CRD was established before the call; otherwise, use
// [Mapper.WaitForMapping]. A CRD that was created and deleted again shortly before the call can be mapped for a moment
// afterwards. Callers do not need Refresh for types of CRDs, unless lookups must be as new as the call.
//
// Refresh returns an error if the discovery documents cannot be read, or if a watch does not deliver its changes within
// 15 seconds. If the discovery of some versions fails, the error wraps a [discovery.ErrGroupDiscoveryFailed] with these
// versions, and lookups reflect everything else. After the permission to list CRDs was revoked, the versions of known
// CRDs are among them. Otherwise, a missing permission to list CRDs or APIServices is not an error, unless their watch
// still runs: the mapper then knows only what discovery contains, which can be a few seconds older. If ctx is cancelled
// first, the error wraps the cause, and the refresh continues.
//
// Refresh waits until [Mapper.Run] is running and has listed CRDs and APIServices. If Run returns, the refresh
// continues in the next Run. A subscriber that calls Refresh must pass a context that ends with Run, because Run waits
// for the subscriber. Calls that are made at the same time share their requests: two requests for the discovery
// documents, two for the metadata of all CRDs and APIServices, and one for each aggregated or failing version. The
// mapper sends them at most once per second. A server that does not respond delays Refresh, but not polls.
func (m *Mapper) Refresh(ctx context.Context) error {
	for {
		r := m.joinRefresh()
		select {
		case <-r.done:
			if errors.Is(r.err, errRunEnded) {
				continue // until the next Run
			}
			if r.err != nil {
				return fmt.Errorf("refresh the REST mapper: %w", r.err)
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("refresh the REST mapper: %w", context.Cause(ctx))
		}
	}
}

// joinRefresh returns the refresh that is processed next.
func (m *Mapper) joinRefresh() *refresh {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refresh == nil {
		m.refresh = &refresh{done: make(chan struct{})}
		signal(m.refreshAsked)
	}
	return m.refresh
}

// takeRefresh returns the refresh to process. Later calls to Refresh join the next one.
func (m *Mapper) takeRefresh() *refresh {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.refresh
	m.refresh = nil
	return r
}

// processRefreshes processes the calls to Refresh until ctx is cancelled.
func (m *Mapper) processRefreshes(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		select {
		case <-m.refreshAsked:
		case <-ctx.Done():
			return
		}
		timer.Reset(refreshPeriod)
		r := m.takeRefresh()
		r.end(m.refreshOnce(ctx))
	}
}

// refreshOnce updates everything that may have changed.
func (m *Mapper) refreshOnce(ctx context.Context) error {
	select {
	case <-m.listed:
	case <-ctx.Done():
		return errRunEnded
	}
	// The documents are read later, so that versions whose CRDs or APIServices have changed are treated accordingly.
	watchErr := m.catchUp(ctx)
	err := m.readDocumentsNow(ctx)
	if err == nil {
		err = m.refreshVersions(ctx)
	}
	if ctx.Err() != nil {
		return errRunEnded
	}
	if watchErr != nil && err != nil {
		// The error must not wrap an ErrGroupDiscoveryFailed, because lookups do not reflect everything else.
		return fmt.Errorf("%w; %v", watchErr, err) //nolint:errorlint // see above
	}
	return cmp.Or(watchErr, err)
}

// readDocumentsNow waits until a poll that begins after the call has read the discovery documents.
func (m *Mapper) readDocumentsNow(ctx context.Context) error {
	r := &refresh{done: make(chan struct{})}
	select {
	case m.documents <- r:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// catchUp waits until both watches have delivered all changes that the API server had stored when catchUp was called.
func (m *Mapper) catchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	watchers, lists := [...]*watcher{m.crds, m.services}, [...]*list{&m.crdList, &m.serviceList}
	var errs [len(watchers)]error
	var waiting sync.WaitGroup
	for i, w := range watchers {
		waiting.Go(func() {
			err := w.catchUp(ctx)
			isExpected := apierrors.IsNotFound(err) || apierrors.IsForbidden(err) && m.isRefused(lists[i])
			if err != nil && !isExpected {
				errs[i] = fmt.Errorf("%s: %w", w.gvr.GroupResource(), err)
			}
		})
	}
	waiting.Wait()
	return errors.Join(errs[:]...)
}

// isRefused reports whether the mapper does without a list, because the API server refuses it.
func (m *Mapper) isRefused(l *list) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !l.refused.IsZero() || l == &m.crdList && m.catalog.crdRefusal != nil
}

// versionRead identifies a request to read a version separately.
type versionRead struct {
	gv    schema.GroupVersion
	d     *discovered
	asked int
}

// refreshVersions reads the versions that the discovery documents do not contain, and those that may be newer than the
// documents. It waits until each of them has been read or has failed. The mapper must have synced, because the first
// sync also receives from m.read.
func (m *Mapper) refreshVersions(ctx context.Context) error {
	reads := m.askForVersions()
	for !m.areComplete(reads) {
		select {
		case <-m.read:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if failed := m.failedVersions(reads); len(failed) > 0 {
		return &discovery.ErrGroupDiscoveryFailed{Groups: failed}
	}
	return nil
}

// askForVersions requests a read of each failing version, and of each version of an aggregated API, for which the
// discovery documents can be outdated; see documentLag. It returns all reads that are not complete.
func (m *Mapper) askForVersions() (reads []versionRead) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for group, versions := range m.catalog.discovered {
		for version, d := range versions {
			gv := schema.GroupVersion{Group: group, Version: version}
			if d.failure != nil || d.isRemote() {
				d.asked++
				d.refreshed = d.asked
				m.requestReadLocked(gv)
			}
			if d.attempted < d.asked {
				reads = append(reads, versionRead{gv, d, d.asked})
			}
		}
	}
	return reads
}

func (m *Mapper) isCurrentLocked(r versionRead) bool {
	return m.catalog.discovered[r.gv.Group][r.gv.Version] == r.d
}

// areComplete reports whether each of the versions has been read, has failed, or has been removed.
func (m *Mapper) areComplete(reads []versionRead) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !slices.ContainsFunc(reads, func(r versionRead) bool {
		return m.isCurrentLocked(r) && r.d.attempted < r.asked
	})
}

// failedVersions returns the errors of those reads that have failed, and of the versions whose CRDs cannot be listed.
// Versions that were added after the reads were requested are not included, because they may not have been read yet.
func (m *Mapper) failedVersions(reads []versionRead) map[schema.GroupVersion]error {
	m.mu.Lock()
	defer m.mu.Unlock()
	failed := m.catalog.refusedVersions()
	for _, r := range reads {
		if m.isCurrentLocked(r) && r.d.failure != nil {
			failed[r.gv] = r.d.failure.Err
		}
	}
	return failed
}
