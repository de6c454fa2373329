package restmapper

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// reports describes what the sources report about a version.
type reports struct{ anyService, service, claimed, established, tombstone, aggregator bool }

// catalog returns a catalog after the reports, and the version.
func (r reports) catalog() (*catalog, schema.GroupVersion) {
	gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
	if r.aggregator {
		gv.Group = aggregatorGroup
	}
	w := newCatalog()
	c := &crd{
		group: gv.Group, established: r.established, versions: []string{gv.Version},
		resource: &resource{name: "widgets", singular: "widget", kind: "FromCRD"},
	}
	if r.anyService {
		serviceEvent(schema.GroupVersion{Version: "v1"}, &service{})(w)
	}
	if r.tombstone || r.claimed {
		crdEvent("widgets", c)(w)
	}
	if r.tombstone {
		crdEvent("widgets", nil)(w)
	}
	if r.service {
		serviceEvent(gv, &service{groupPriority: 7})(w)
	}
	return w, gv
}

// Each row lists everything that the sources report about a version.
func TestCatalog_EachVersionHasOneOwner(t *testing.T) {
	for name, test := range map[string]struct {
		reports
		owner          owner
		documentIsUsed bool
		priority       int
	}{
		"an APIService": {
			reports{service: true}, ownedByService, true, 7,
		},
		"an APIService precedes the CRDs that claim the version": {
			reports{service: true, claimed: true, established: true}, ownedByService, true, 7,
		},
		"an established CRD": {
			reports{anyService: true, claimed: true, established: true}, ownedByCRDs, false, crdGroupPriority,
		},
		"a CRD that is not established reserves the version": {
			reports{anyService: true, claimed: true}, ownedByCRDs, false, 0,
		},
		"a CRD on an API server without APIServices": {
			reports{claimed: true, established: true}, ownedByCRDs, false, crdGroupPriority,
		},
		"a tombstone": {
			reports{anyService: true, tombstone: true}, ownedByNone, false, 0,
		},
		"a tombstone on an API server without APIServices": {
			reports{tombstone: true}, ownedByNone, false, 0,
		},
		"only the document": {
			reports{anyService: true}, ownedByUnseenCRD, true, crdGroupPriority,
		},
		"only the document, for the group of APIServices": {
			reports{anyService: true, aggregator: true}, ownedByAggregator, true, documentPriority,
		},
		"only the document, on an API server without APIServices": {
			reports{}, ownedByUnknown, true, documentPriority,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, gv := test.catalog()
			if owner := w.ownerOf(gv); owner != test.owner {
				t.Errorf("got owner %d, want %d", owner, test.owner)
			}
			documentEvent(false, []documentVersion{{gv: gv, resources: []*resource{
				{name: "widgets", singular: "widget", kind: "FromDocument"},
			}}})(w)
			g := w.group(gv.Group)
			for kind, isMapped := range map[string]bool{
				"FromDocument": test.documentIsUsed, "FromCRD": test.owner == ownedByCRDs && test.established,
			} {
				_, e := g.nextServed(kind, new(int))
				if (e != nil) != isMapped {
					t.Errorf("%s is mapped: %t, want %t", kind, e != nil, isMapped)
				}
			}
			if g != nil && g.priority != test.priority || g == nil && test.priority > 0 {
				t.Errorf("got group %+v, want the priority %d", g, test.priority)
			}
		})
	}
}
