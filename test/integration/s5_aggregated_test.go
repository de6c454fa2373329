package integration

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

const (
	// noticeLimit is the time within which the state of a watched type must report a problem.
	noticeLimit = 10 * time.Second
	// pollLimit is more than the time of two polls.
	pollLimit = 70 * time.Second
)

// aggregatedServing is a controller that serves all types of an aggregated API server.
type aggregatedServing struct {
	*harness
	server     *aggregated
	mode       dynamiccontroller.CacheMode
	controller *dynamiccontroller.DynamicController
	calls      *recorder
}

type aggregatedServings []*aggregatedServing

// The types of an aggregated API server can lack watches, streaming lists, bookmarks and resourceVersions. The server
// can stop, and forget its versions. Changes are delivered nevertheless, and the types' states are true.
func TestS5_AggregatedAPIServer(t *testing.T) {
	t.Parallel()
	h, _ := newRestorable(t) // the clients of another API server would notice that the aggregated one is stopped
	a := h.newAggregated(1000)
	things, versionless := a.gv.WithResource("things"), a.gv.WithResource("versionless")
	polled, samples := a.gv.WithResource("polled"), a.gv.WithResource("samples")
	quick, all := []gvrType{things, polled, samples}, []gvrType{things, polled, samples, versionless}
	a.put("changed", 1)
	a.put("removed", 1)
	a.put("removed-later", 1)
	servings := h.serveAggregated(a, all)

	// The first lists are followed by changes, while a streaming list of versionless objects is not complete yet: the
	// server ignores the parameter, and this takes 30 seconds to detect.
	servings.reconciled(quick, nil, "changed", "removed", "removed-later")
	since := servings.since(quick)
	servings.after(quick, func() {
		a.put("changed", 2)
		a.put("created", 2)
		a.put("nameless", 2, func(metadata map[string]any) { delete(metadata, "name") })
		a.put("mislabeled", 2, func(metadata map[string]any) { metadata["labels"] = map[string]any{"n": int64(2)} })
		a.remove("removed")
	}, "changed", "created", "removed")
	servings.reconciled([]gvrType{versionless}, nil, "changed", "created", "removed-later")
	servings.areUpToDate(all)
	servings.after([]gvrType{things, versionless}, func() {
		a.put("changed", 3)
		a.put("later", 3)
		a.remove("created")
	}, "changed", "later", "created")
	if diff := cmp.Diff(since, servings.since(quick)); diff != "" {
		t.Errorf("the state has changed:\n%s", diff)
	}

	a.stop()
	servings.eachState([]gvrType{things, versionless}, noticeLimit, isFailing)
	servings.eachState([]gvrType{polled, samples}, pollLimit, isFailing)
	servings.after(all, func() {
		a.put("changed", 4)
		a.put("meanwhile", 4)
		a.remove("removed-later")
		a.restart(0)
	}, "meanwhile", "removed-later")
	servings.areUpToDate(all)
	servings.after([]gvrType{things, versionless}, func() { a.put("changed", 5) }, "changed")
}

// serveAggregated starts a controller for each cache mode.
func (h *harness) serveAggregated(a *aggregated, types []gvrType) (servings aggregatedServings) {
	h.Helper()
	for _, gvr := range types {
		h.eventually("requests for "+gvr.Resource+" are forwarded", func() error {
			_, err := h.client.Resource(gvr).List(h.Context(), metav1.ListOptions{})
			return err
		})
	}
	for _, mode := range []dynamiccontroller.CacheMode{
		dynamiccontroller.CacheFull, dynamiccontroller.CacheMetadata, dynamiccontroller.CacheKeys,
	} {
		s := &aggregatedServing{h, a, mode, h.controller(dynamiccontroller.Config{}), newRecorder(h.T, nil)}
		for _, gvr := range types {
			h.serve(s.controller, gvr, s.calls.handle, dynamiccontroller.WithCache(mode))
		}
		h.run(s.controller)
		servings = append(servings, s)
	}
	return servings
}

// reconciled waits until the named objects of each type have been reconciled more often than before.
func (all aggregatedServings) reconciled(
	types []gvrType, before []map[dynamiccontroller.ObjectIdentifiers]int, names ...string,
) {
	for i, s := range all {
		s.Helper()
		for _, gvr := range types {
			for _, name := range names {
				id, calls := s.id(gvr, name), 0
				if before != nil {
					calls = before[i][id]
				}
				s.eventuallyWithin(pollLimit, fmt.Sprintf("%s is reconciled, cache mode %d", id, s.mode), func() error {
					if s.calls.count(id) <= calls {
						return fmt.Errorf("state %+v", s.status(gvr).WatchStatus)
					}
					return nil
				})
			}
		}
	}
}

// after makes changes, and waits until the named objects of each type have been reconciled after the changes.
func (all aggregatedServings) after(types []gvrType, change func(), names ...string) {
	var before []map[dynamiccontroller.ObjectIdentifiers]int
	for _, s := range all {
		s.Helper()
		before = append(before, s.calls.counts())
	}
	change()
	all.reconciled(types, before, names...)
}

func (s *aggregatedServing) status(gvr gvrType) dynamiccontroller.TypeStatus {
	s.Helper()
	status, err := s.controller.TypeStatusOf(gvr)
	if err != nil {
		s.Fatal(err)
	}
	return status
}

// since waits until each type is synced, and returns since when.
func (all aggregatedServings) since(types []gvrType) (since []time.Time) {
	all.eachState(types, pollLimit, isSynced)
	for _, s := range all {
		for _, gvr := range types {
			since = append(since, s.status(gvr).Since)
		}
	}
	return since
}

// eachState waits until the check succeeds for the status of each type. All of them have the same time.
func (all aggregatedServings) eachState(
	types []gvrType, limit time.Duration, check func(*aggregatedServing, dynamiccontroller.TypeStatus) error,
) {
	began := time.Now()
	for _, s := range all {
		s.Helper()
		for _, gvr := range types {
			s.eventuallyWithin(max(limit-time.Since(began), time.Millisecond), "check the state", func() error {
				if err := check(s, s.status(gvr)); err != nil {
					return fmt.Errorf("%s, cache mode %d: %w", gvr, s.mode, err)
				}
				return nil
			})
		}
	}
}

func isSynced(_ *aggregatedServing, status dynamiccontroller.TypeStatus) error {
	if status.State != dynamiccontroller.TypeSynced || status.Message != "" {
		return fmt.Errorf("got status %+v", status.WatchStatus)
	}
	return nil
}

func isFailing(_ *aggregatedServing, status dynamiccontroller.TypeStatus) error {
	if status.State != dynamiccontroller.TypeFailing || status.Message == "" {
		return fmt.Errorf("got status %+v", status.WatchStatus)
	}
	return nil
}

// areUpToDate waits until all types are synced and all caches hold the objects of the server that can be used.
func (all aggregatedServings) areUpToDate(types []gvrType) {
	all.eachState(types, pollLimit, func(s *aggregatedServing, status dynamiccontroller.TypeStatus) error {
		cached, err := s.cached(status)
		if err := errors.Join(err, isSynced(s, status)); err != nil {
			return err
		}
		want, unusable := s.server.values(s.mode == dynamiccontroller.CacheFull)
		if diff := cmp.Diff(want, cached); s.mode != dynamiccontroller.CacheKeys && diff != "" {
			return fmt.Errorf("the cache differs:\n%s", diff)
		}
		if status.Objects != len(want) || status.Unusable != unusable {
			return fmt.Errorf("got %+v, want %d objects, and %d unusable ones", status.WatchStatus, len(want), unusable)
		}
		if wantPolled := status.GVR.Resource == "polled" || status.GVR.Resource == "samples"; status.Polled != wantPolled {
			return fmt.Errorf("got Polled %t, want %t", status.Polled, wantPolled)
		}
		return nil
	})
}

// cached returns the label of each cached object. If only keys are cached, it returns nil.
func (s *aggregatedServing) cached(status dynamiccontroller.TypeStatus) (map[string]string, error) {
	if s.mode == dynamiccontroller.CacheKeys {
		return nil, nil
	}
	lister, err := s.controller.Lister(status.GVR)
	if err != nil {
		return nil, err
	}
	objects, err := lister.List(labels.Everything())
	values := map[string]string{}
	for _, object := range objects {
		o := object.(metav1.Object)
		values[o.GetName()] = o.GetLabels()["n"]
	}
	return values, err
}
