package integration

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/restmapper"
)

// refreshed refreshes the mapper. It ignores the failing APIs of other tests.
func (h *harness) refreshed(m *restmapper.Mapper, group string) {
	h.Helper()
	err := m.Refresh(h.Context())
	failed, isPartial := discovery.GroupDiscoveryFailedErrorGroups(err)
	for gv := range failed {
		if gv.Group == group {
			h.Error(err)
		}
	}
	if !isPartial {
		h.noError(err)
	}
}

// Lookups reflect CRDs that were established or deleted before the refresh, and the current resources of an aggregated
// API. The API server itself asks an aggregated API for its resources only once per minute.
func TestM2_RefreshReflectsEarlierChanges(t *testing.T) {
	h := newHarness(t)
	m, _ := h.mapper()
	gvr := h.newType()
	widget := schema.GroupKind{Group: gvr.Group, Kind: "Widget"}
	for range 5 {
		h.define(gvr)
		h.refreshed(m, gvr.Group)
		if _, err := m.RESTMapping(widget); err != nil {
			t.Error("after the CRD was established:", err)
		}
		h.undefine(gvr)
		h.eventually("the CRD is deleted", func() error {
			crds, name := h.crds.ApiextensionsV1().CustomResourceDefinitions(), gvr.GroupResource().String()
			_, err := crds.Get(h.Context(), name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, errors.New("the CRD exists"))
		})
		h.refreshed(m, gvr.Group)
		if _, err := m.RESTMapping(widget); !meta.IsNoMatchError(err) {
			t.Errorf("after the CRD was deleted: got error %v, want a NoMatch error", err)
		}
	}

	e := h.newExtension("Metric")
	h.register(e)
	h.waitForKind(m, schema.GroupKind{Group: e.gv.Group, Kind: "Metric"})
	for _, kind := range []string{"Gauge", "Meter"} {
		e.set(false, kind)
		h.refreshed(m, e.gv.Group)
		if _, err := m.RESTMapping(schema.GroupKind{Group: e.gv.Group, Kind: kind}); err != nil {
			t.Error(err)
		}
	}
	e.set(true)
	if failed, _ := discovery.GroupDiscoveryFailedErrorGroups(m.Refresh(t.Context())); failed[e.gv] == nil {
		t.Errorf("got failed versions %v, want %s", failed, e.gv)
	}
	_, err := m.RESTMapping(schema.GroupKind{Group: e.gv.Group, Kind: "Unknown"})
	if failed, _ := discovery.GroupDiscoveryFailedErrorGroups(err); failed[e.gv] == nil || meta.IsNoMatchError(err) {
		t.Errorf("got error %v", err)
	}
	if _, err := m.RESTMapping(schema.GroupKind{Group: e.gv.Group, Kind: "Meter"}); err != nil {
		t.Error("the last known results are not returned:", err)
	}
}

func TestM2_MapperNeedsNoPermissionToListCRDs(t *testing.T) {
	h := newHarness(t)
	unprivileged := *h
	unprivileged.config = rest.CopyConfig(h.config)
	unprivileged.config.Impersonate = rest.ImpersonationConfig{UserName: "unprivileged"}
	m, _ := unprivileged.mapper(restmapper.WithPollPeriod(time.Second))
	for _, source := range []restmapper.Source{restmapper.SourceCRDs, restmapper.SourceAPIServices} {
		h.eventually("the missing permission is reported", func() error {
			for _, err := range m.Errors() {
				if err.Source == source && apierrors.IsForbidden(err) {
					return nil
				}
			}
			return fmt.Errorf("%s: got errors %v", source, m.Errors())
		})
	}
	h.waitForKind(m, schema.GroupKind{Group: "apps", Kind: "Deployment"})
	gvr := h.define(h.newType())
	widget := schema.GroupKind{Group: gvr.Group, Kind: "Widget"}
	if mapping := h.waitForKind(m, widget); mapping.Resource != gvr {
		t.Errorf("got mapping %v", mapping)
	}
	h.undefine(gvr)
	h.untilNoMatch(m, widget)
}
