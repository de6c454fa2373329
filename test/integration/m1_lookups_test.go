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

// A million lookups from eight goroutines while CRDs change, come and go: all are answered, and none by less than what
// had been seen before it began.
func TestM1_LookupsWhileCRDsChange(t *testing.T) {
	const readers, lookups, leastChanges = 8, 1_000_000, 30
	h := newHarness(t)
	m, _ := h.mapper()
	group := h.newType().Group
	kind := schema.GroupKind{Group: group, Kind: "Widget"}
	crd := newCRD(group, "widgets", "widget", "Widget", "v1")
	h.createCRD(crd)
	h.waitForKind(m, kind)

	var seen, asked atomic.Int64 // the newest version that was seen; lookups
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
				least := seen.Load()
				mapping, err := m.RESTMapping(kind)
				if err == nil {
					err = notOlder(mapping.Resource.Version, least)
				}
				least = seen.Load()
				answer, kindErr := m.KindFor(schema.GroupVersionResource{Resource: "widget", Group: group})
				if kindErr == nil {
					kindErr = notOlder(answer.Version, least)
				}
				_, podErr := m.ResourceFor(schema.GroupVersionResource{Resource: "po"})
				asked.Add(3)
				if err := errors.Join(err, kindErr, podErr); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	other := newCRD(group, "gadgets", "gadget", "Gadget", "v1")
	changes := 0
	for i := int64(2); !t.Failed() && (asked.Load() < lookups || changes < leastChanges); i++ {
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
		t.Errorf("a version that was dropped: %v", err)
	}
	t.Logf("%d lookups during %d changes", asked.Load(), changes)
}

// notOlder compares versions that are numbers.
func notOlder(version string, least int64) error {
	if n, err := strconv.ParseInt(strings.TrimPrefix(version, "v"), 10, 64); err != nil || n < least {
		return fmt.Errorf("a stale answer: %s after v%d was seen", version, least)
	}
	return nil
}
