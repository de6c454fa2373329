package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/restmapper"
	"github.com/dynamic-controller/engine/test/cluster"
)

// waitForKind waits until the kind is mapped. If that takes longer than the deadline, it fails the test.
func (h *harness) waitForKind(m *restmapper.Mapper, gk schema.GroupKind, versions ...string) *meta.RESTMapping {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), deadline)
	defer cancel()
	mapping, err := m.WaitForMapping(ctx, gk, versions...)
	h.noError(err)
	return mapping
}

func (h *harness) untilNoMatch(m *restmapper.Mapper, gk schema.GroupKind, versions ...string) {
	h.Helper()
	h.eventually(fmt.Sprintf("%s %v is not mapped", gk, versions), func() error {
		if mapping, err := m.RESTMapping(gk, versions...); !meta.IsNoMatchError(err) {
			return fmt.Errorf("got mapping %v and error %w", mapping, err)
		}
		return nil
	})
}

func TestM2_CRDChangesNeedNoDiscovery(t *testing.T) {
	h, w := newHarness(t), &wire{}
	m, _ := w.through(h).mapper()
	n := w.discoveryCount()
	group := h.newType().Group
	kind, category := schema.GroupKind{Group: group, Kind: "Widget"}, "test-"+strings.TrimSuffix(group, ".example.com")
	crd := newCRD(group, "widgets", "widget", "Widget", "v1", "v1beta1")
	name := crd.Name

	h.createCRD(crd)
	if mapping := h.waitForKind(m, kind); mapping.Resource.Version != "v1" || mapping.Scope != meta.RESTScopeNamespace {
		t.Errorf("got mapping %v", mapping)
	}
	h.updateCRD(name, func(crd *apiextensionsv1.CustomResourceDefinition) {
		v2 := *crd.Spec.Versions[0].DeepCopy()
		v2.Name, v2.Storage = "v2", false
		crd.Spec.Versions = append(crd.Spec.Versions, v2)
	})
	h.waitForKind(m, kind, "v2")
	h.updateCRD(name, func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Versions[1].Served = false })
	h.untilNoMatch(m, kind, "v1beta1")
	h.updateCRD(name, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Names.ShortNames, crd.Spec.Names.Categories = []string{"wdgt"}, []string{category}
	})
	h.eventually("the short name is mapped", func() error {
		_, err := m.ResourceFor(schema.GroupVersionResource{Group: group, Resource: "wdgt"})
		return err
	})
	if all, _ := m.Expand(category); len(all) != 2 { // one for each version
		t.Errorf("the category contains %v, want both versions", all)
	}

	// The CRD is deleted and created again with another kind, version and scope.
	h.deleteCRD(name)
	h.untilNoMatch(m, kind)
	again := newCRD(group, "widgets", "gizmo", "Gizmo", "v3")
	again.Spec.Scope = apiextensionsv1.ClusterScoped
	h.eventually("the CRD is created again", func() error {
		_, err := h.crds.ApiextensionsV1().CustomResourceDefinitions().Create(h.Context(), again, metav1.CreateOptions{})
		return err
	})
	mapping := h.waitForKind(m, schema.GroupKind{Group: group, Kind: "Gizmo"})
	if mapping.Scope != meta.RESTScopeRoot || mapping.Resource.Version != "v3" {
		t.Errorf("got mapping %v", mapping)
	}
	h.untilNoMatch(m, kind)
	if n := n.Load(); n > 0 {
		t.Errorf("got %d discovery requests, want none", n)
	}
}

// A CRD whose names conflict with those of another CRD must not be mapped until it is established.
func TestM2_CRDIsMappedWhenEstablished(t *testing.T) {
	h := newHarness(t)
	m, _ := h.mapper()
	group := h.newType().Group
	first, second := newCRD(group, "widgets", "widget", "Widget", "v1"), newCRD(group, "gadgets", "gadget", "Widget", "v2")
	h.createCRD(first)
	h.waitForKind(m, schema.GroupKind{Group: group, Kind: "Widget"}, "v1")
	h.createCRD(second) // conflicts, because it has the same kind
	h.createCRD(newCRD(group, "fences", "fence", "Fence", "v1"))
	h.waitForKind(m, schema.GroupKind{Group: group, Kind: "Fence"})
	if mapping, err := m.RESTMapping(schema.GroupKind{Group: group, Kind: "Widget"}, "v2"); !meta.IsNoMatchError(err) {
		t.Errorf("got mapping %v and error %v for a CRD that is not established", mapping, err)
	}
	// Wait until the new type's storage is ready. Otherwise, the API server can take minutes to delete the type's objects
	// and CRD.
	h.eventually("the objects of the first CRD can be listed", func() error {
		widgets := schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
		_, err := h.client.Resource(widgets).List(h.Context(), metav1.ListOptions{ResourceVersion: "0"})
		return err
	})
	h.deleteCRD(first.Name)
	mapping := h.waitForKind(m, schema.GroupKind{Group: group, Kind: "Widget"}, "v2")
	if mapping.Resource.Resource != "gadgets" {
		t.Errorf("got mapping %v", mapping)
	}
}

// While a CRD is being deleted, the API server continues to serve the CRD's type until all objects have been finalized.
func TestM2_TerminatingCRDIsMappedWhileItIsServed(t *testing.T) {
	h := newHarness(t)
	m, _ := h.mapper()
	gvr := h.define(h.newType())
	kind := schema.GroupKind{Group: gvr.Group, Kind: "Widget"}
	h.apply(gvr, "w", 0)
	setFinalizers := func(list string) {
		_, err := h.client.Resource(gvr).Namespace(h.namespace).Patch(h.Context(), "w", types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":`+list+`}}`), metav1.PatchOptions{})
		h.noError(err)
	}
	setFinalizers(`["example.com/wait"]`)
	h.deleteCRD(gvr.GroupResource().String())
	h.eventually("the CRD is terminating", func() error {
		name := gvr.GroupResource().String()
		crd, err := h.crds.ApiextensionsV1().CustomResourceDefinitions().Get(h.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range crd.Status.Conditions {
			if c.Type == apiextensionsv1.Terminating && c.Status == apiextensionsv1.ConditionTrue {
				return nil
			}
		}
		return errors.New("not terminating")
	})
	if !h.inDiscovery(gvr.GroupVersion()) {
		t.Error("discovery does not list the version")
	}
	h.waitForKind(m, kind)
	setFinalizers(`[]`)
	h.untilNoMatch(m, kind)
}

func (h *harness) inDiscovery(gv schema.GroupVersion) bool {
	for _, list := range h.discover().resources {
		if list.GroupVersion == gv.String() {
			return true
		}
	}
	return false
}

// A CRD can add versions to a built-in group. The group's built-in versions must not be affected.
func TestM2_CRDInBuiltInGroup(t *testing.T) {
	h := newHarness(t)
	m, _ := h.mapper()
	crd := newCRD("node.k8s.io", "testwidgets", "testwidget", "TestWidget", "v1", "v7", "v1alpha1")
	crd.Spec.Names.ShortNames = []string{"cj"} // also the short name of CronJobs in the group batch
	crd.Annotations = map[string]string{"api-approved.kubernetes.io": "unapproved, created by a test"}
	h.createCRD(crd)
	h.waitForKind(m, schema.GroupKind{Group: "node.k8s.io", Kind: "TestWidget"}, "v7")
	h.untilNoMatch(m, schema.GroupKind{Group: "node.k8s.io", Kind: "TestWidget"}, "v1")
	h.waitForKind(m, schema.GroupKind{Group: "node.k8s.io", Kind: "RuntimeClass"})
	h.compareAnswers("a CRD in node.k8s.io", m)
	h.deleteCRD(crd.Name)
	h.untilNoMatch(m, schema.GroupKind{Group: "node.k8s.io", Kind: "TestWidget"})
	h.compareAnswers("the CRD is deleted", m)
}

// While the API server is unavailable, lookups return the last known results.
func TestM2_MapperRecoversFromAnUnavailableAPIServer(t *testing.T) {
	h := newHarness(t)
	m, _ := h.mapper()
	deleted, kept := h.define(h.newType()), h.define(h.newType())
	kindOf := func(gvr schema.GroupVersionResource) schema.GroupKind {
		return schema.GroupKind{Group: gvr.Group, Kind: "Widget"}
	}
	h.waitForKind(m, kindOf(deleted))
	h.waitForKind(m, kindOf(kept))
	server := shared.Cluster(t).APIServer()
	if err := server.Kill(); errors.Is(err, cluster.ErrExternal) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	h.eventually("an error is reported", func() error {
		if len(m.Errors()) == 0 {
			return errors.New("no errors")
		}
		return nil
	})
	h.waitForKind(m, kindOf(deleted))
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	h.noError(server.Start(ctx))
	h.noError(shared.Cluster(t).WaitReady(ctx))
	h.undefine(deleted)
	added := h.define(h.newType())
	h.waitForKind(m, kindOf(added))
	h.untilNoMatch(m, kindOf(deleted))
	h.waitForKind(m, kindOf(kept))
	h.eventually("no error is reported", func() error {
		if errs := m.Errors(); len(errs) > 0 {
			return fmt.Errorf("%v", errs)
		}
		return nil
	})
}

// The mapper must poll with conditional requests, so that the API server does not send a discovery document again if
// the document has not changed.
func TestM2_PollIsConditional(t *testing.T) {
	h, w := newHarness(t), &wire{}
	through := w.through(h)
	notModified := make(chan struct{}, 1)
	w.set(func(r *http.Request, send send) (*http.Response, error) {
		response, err := send(r)
		if err == nil && strings.HasSuffix(r.URL.Path, "/apis") && response.StatusCode == http.StatusNotModified {
			select {
			case notModified <- struct{}{}:
			default:
			}
		}
		return response, err
	})
	through.mapper(restmapper.WithPollPeriod(time.Second))
	select {
	case <-notModified:
	case <-time.After(deadline):
		t.Error("no poll received a 304 response")
	}
}
