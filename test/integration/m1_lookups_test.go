package integration

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Lookups run concurrently with changes to CRDs. No lookup may return a version that is older than a version seen
// before the lookup began.
func TestM1_LookupsDuringCRDChanges(t *testing.T) {
	const readers, lookups, minChanges = 8, 1_000_000, 30
	h := newHarness(t)
	m, _ := h.mapper()
	group := h.newType().Group
	kind := schema.GroupKind{Group: group, Kind: "Widget"}
	crd := newCRD(group, "widgets", "widget", "Widget", "v1")
	h.createCRD(crd)
	h.waitForKind(m, kind)

	var seen, done atomic.Int64 // seen is the newest version found; done counts the lookups
	seen.Store(1)
	stop := make(chan struct{})
	var reading sync.WaitGroup
	defer reading.Wait()
	defer close(stop)
	for range readers {
		reading.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				oldest := seen.Load()
				mapping, err := m.RESTMapping(kind)
				if err == nil {
					err = notOlder(mapping.Resource.Version, oldest)
				}
				oldest = seen.Load()
				kind, kindErr := m.KindFor(schema.GroupVersionResource{Resource: "widget", Group: group})
				if kindErr == nil {
					kindErr = notOlder(kind.Version, oldest)
				}
				_, podErr := m.ResourceFor(schema.GroupVersionResource{Resource: "po"})
				done.Add(3)
				if err := errors.Join(err, kindErr, podErr); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	other := newCRD(group, "gadgets", "gadget", "Gadget", "v1")
	changes := 0
	for i := int64(2); !t.Failed() && (done.Load() < lookups || changes < minChanges); i++ {
		h.updateCRD(crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) {
			next := *crd.Spec.Versions[0].DeepCopy()
			next.Name, next.Storage = fmt.Sprintf("v%d", i), false
			crd.Spec.Versions = append(crd.Spec.Versions[:1], next)
		})
		h.waitForKind(m, kind, fmt.Sprintf("v%d", i))
		seen.Store(i)
		h.createCRD(other.DeepCopy())
		h.waitForKind(m, schema.GroupKind{Group: group, Kind: "Gadget"})
		h.deleteCRD(other.Name)
		h.untilNoMatch(m, schema.GroupKind{Group: group, Kind: "Gadget"})
		changes += 3
	}
	if _, err := m.RESTMapping(kind, "v2"); seen.Load() > 2 && !meta.IsNoMatchError(err) {
		t.Errorf("a version that is no longer served: got error %v, want a NoMatch error", err)
	}
	t.Logf("%d lookups during %d changes", done.Load(), changes)
}

// notOlder returns an error if the number in a version such as v3 is lower than oldest.
func notOlder(version string, oldest int64) error {
	if n, err := strconv.ParseInt(strings.TrimPrefix(version, "v"), 10, 64); err != nil || n < oldest {
		return fmt.Errorf("got version %s after v%d had been seen", version, oldest)
	}
	return nil
}
