package restmapper

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// ErrNotSynced is returned by lookups before the mapper has synced for the first time. It is not a NoMatch error,
// because the mapper does not have the data that is needed to rule out a match.
var ErrNotSynced = errors.New("the REST mapper has not synced yet")

// errNotRead is the error for a version that has not been read for the first time.
var errNotRead = errors.New("the version has not been read yet")

// decided returns the error from a lookup in one group. If there are no versions, or only empty and internal ones, the
// lookup was made in all versions. A NoMatch error is replaced if the group has a version that can contain the match
// and whose newest resources are unknown.
func (s *snapshot) decided(err error, group string, versions ...string) error {
	if err == nil {
		return nil
	}
	unread := s.unread.Get(group)
	if len(unread) == 0 || !meta.IsNoMatchError(err) {
		return err
	}
	failed := map[schema.GroupVersion]error{}
	restricted := slices.ContainsFunc(versions, isExplicit)
	for version, reason := range unread {
		if !restricted || slices.Contains(versions, version) {
			failed[schema.GroupVersion{Group: group, Version: version}] = reason
		}
	}
	return undecidedError(err, failed)
}

// decidedFor is like decided, for the lookup of a resource by a name. Such a lookup also expands short names of all
// versions, and prefixes of groups. Therefore, all versions of all groups with the prefix can contain the match. The
// error of a lookup without a group is not replaced: otherwise, no such lookup could return a NoMatch error while any
// group is failing.
func (s *snapshot) decidedFor(err error, r schema.GroupVersionResource) error {
	if err == nil || r.Group == "" || s.unread.Len() == 0 || !meta.IsNoMatchError(err) {
		return err
	}
	failed := map[schema.GroupVersion]error{}
	for group, unread := range s.unread.All() {
		if !strings.HasPrefix(group, r.Group) {
			continue
		}
		for version, reason := range unread {
			failed[schema.GroupVersion{Group: group, Version: version}] = reason
		}
	}
	return undecidedError(err, failed)
}

// undecidedError returns a NoMatch error, or the error that replaces it if the discovery of any versions has failed.
func undecidedError(err error, failed map[schema.GroupVersion]error) error {
	if len(failed) == 0 {
		return err
	}
	// The NoMatch error must not be wrapped.
	incomplete := &discovery.ErrGroupDiscoveryFailed{Groups: failed}
	return fmt.Errorf("%s, but not all resources are known: %w", err.Error(), incomplete)
}

// Source identifies where the data of a mapper comes from.
type Source string

const (
	SourceCRDs        Source = "CRDs"        // the watch of CustomResourceDefinitions
	SourceAPIServices Source = "APIServices" // the watch of APIServices
	SourceDiscovery   Source = "Discovery"   // the discovery documents, or the discovery of one version
)

// Error describes the current failure of requests to one source. Lookups continue to use the last data that was
// received.
type Error struct {
	Source Source
	// GroupVersion is the version of the watched type, or the version whose discovery fails. It is empty if the
	// discovery documents themselves, /api and /apis, cannot be read.
	GroupVersion schema.GroupVersion
	// Err is the newest error.
	Err error
	// Since is the time when the current series of errors began.
	Since time.Time
}

// Error returns the source, the version and the newest error.
func (e Error) Error() string {
	if e.GroupVersion.Empty() {
		return fmt.Sprintf("%s: %v", e.Source, e.Err)
	}
	return fmt.Sprintf("%s %s: %v", e.Source, e.GroupVersion, e.Err)
}

// Unwrap returns Err.
func (e Error) Unwrap() error { return e.Err }

// Errors returns the sources that are currently failing, sorted by name and version. The result is empty if all
// requests succeed. While the mapper works without CRDs or APIServices because of a missing permission, the result
// contains a Forbidden error with the source [SourceCRDs] or [SourceAPIServices]. The error from a watch is cleared
// once the watch has been open for a few seconds.
func (m *Mapper) Errors() []Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []Error
	for _, f := range m.failures {
		errs = append(errs, f.Error)
	}
	for _, versions := range m.catalog.discovered {
		for _, d := range versions {
			if d.failure != nil {
				errs = append(errs, *d.failure)
			}
		}
	}
	slices.SortFunc(errs, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.GroupVersion.Group, b.GroupVersion.Group),
			cmp.Compare(a.GroupVersion.Version, b.GroupVersion.Version))
	})
	return errs
}

// failure is the state of a failing source.
type failure struct {
	Error
	forbidden bool // one of the consecutive errors was due to a missing permission
}

// setFailure records the result of the newest request to a source. It logs when the source begins to fail, and when it
// has recovered. If CRDs cannot be read because of a missing permission, it also logs the first such error.
func (m *Mapper) setFailure(source Source, gv schema.GroupVersion, err error) {
	forbidden := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
	wasFailing, wasForbidden := m.storeFailure(source, gv, err, forbidden)
	request := "Watch"
	if source == SourceDiscovery {
		request = "Discovery"
	}
	log := m.log.WithValues(keySource, source, keyGroupVersion, gv.String())
	switch {
	case err == nil && wasFailing:
		log.Info(request + " recovered")
	case err == nil:
	case source == SourceCRDs && forbidden && !wasForbidden:
		log.Error(err, request+" forbidden, will retry")
	case wasFailing:
		log.V(1).Info(request+" failed again, will retry", keyError, err.Error())
	default:
		log.Info(request+" failed, will retry", keyError, err.Error())
	}
}

func (m *Mapper) storeFailure(
	source Source, gv schema.GroupVersion, err error, forbidden bool,
) (wasFailing, wasForbidden bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, wasFailing := m.failures[source]
	if err == nil {
		delete(m.failures, source)
		return wasFailing, false
	}
	since := time.Now()
	if wasFailing {
		since = old.Since
	}
	m.failures[source] = failure{
		Error:     Error{Source: source, GroupVersion: gv, Err: err, Since: since},
		forbidden: forbidden || old.forbidden,
	}
	return wasFailing, old.forbidden
}
