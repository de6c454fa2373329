package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/internal/shards"
)

const (
	shardCount = 8
	typeCount  = 12
)

// Each round injects one or two random faults into the leaders of shards, the leader of the fleet, or replicas that
// keep a shard warm, mostly into leaders. The round ends when all changes have been reconciled. Fleets of 3, 4 and 5
// replicas take turns.
func TestH2_H3_H4_H5_H6_H9_Rounds(t *testing.T) {
	inRounds(t, func(t *testing.T, rounds []round) {
		const fewest, sizes = 3, 3
		f := newShardedFleet(t, fewest+rounds[0].number/perFleet%sizes)
		for _, round := range rounds {
			f.runRound(round, append(faults[:len(faults):len(faults)], shardFaults...))
		}
		f.finish()
	})
}

// Each fault that only a fleet with shards has is injected into the leader of another shard. The other faults are
// injected into fleets with shards by the test above.
func TestH2_H3_H4_H5_H6_H9_EveryShardFault(t *testing.T) {
	f := newShardedFleet(t, 3)
	for i, fault := range shardFaults {
		at := target{lease: shardLease(leaseName, i%shardCount)}
		at.member = f.awaitReconciles(at.lease)
		f.recordFault("%s: %s leads %s", fault.name, at.processName(), at.lease)
		d := longerThanLease
		if fault.isBrief {
			d = time.Second
		}
		fault.inject(f, at, d)
		f.awaitLeaders()
		f.settle()
		f.load.start()
	}
	report := f.finish()
	if report.Terms < 2*shardCount || report.Handlers < typeCount || report.Rejected == 0 {
		t.Errorf("too few terms, handler calls or rejected writes: %s", report)
	}
}

// newShardedFleet starts replicas of the engine, which divide the shards of twelve types among them, and begins to
// change objects.
func newShardedFleet(t *testing.T, count int) *fleet {
	t.Helper()
	f := newMembers(t, count)
	f.shards, f.spare = shardCount, f.newMember("spare")
	for _, m := range f.all() {
		m.shards = shardCount
	}
	f.rules.Fleet = leaseName
	// The lease of a fleet keeps replicas without shards from leading for four times as long.
	f.rules.Respected = map[string]time.Duration{"": leaseDuration, leaseName: 4 * leaseDuration}
	f.types = typesInShards(f.namespace + ".example.com")
	f.defineTypes()
	f.startChanging(2, 1)
	return f
}

// typesInShards returns types that are distributed evenly over the shards.
func typesInShards(group string) (types []schema.GroupVersionResource) {
	for i := range typeCount {
		for n := 0; ; n++ {
			gr := schema.GroupResource{Group: group, Resource: fmt.Sprintf("t%dn%ds", i, n)}
			if shards.Of(gr, shardCount) == i%shardCount {
				types = append(types, gr.WithVersion("v1"))
				break
			}
		}
	}
	return types
}

// defineTypes creates the CRDs of the types, and deletes them when the test ends.
func (f *fleet) defineTypes() {
	f.Helper()
	f.noError(define(f.cluster.Config(), f.types...))
	f.Cleanup(func() {
		for _, gvr := range f.types {
			if err := f.removeType(context.WithoutCancel(f.Context()), gvr); err != nil {
				f.Error(err)
			}
		}
	})
}

func (f *fleet) removeType(ctx context.Context, gvr schema.GroupVersionResource) error {
	definitions, err := apiextensions.NewForConfig(f.cluster.Config())
	if err != nil {
		return err
	}
	return definitions.ApiextensionsV1().CustomResourceDefinitions().Delete(ctx, gvr.GroupResource().String(),
		metav1.DeleteOptions{})
}

// checkLeasesLeft checks that replicas without shards can lead after all replicas have left, and that no replica has
// left a lease of its own behind.
func (f *fleet) checkLeasesLeft() {
	f.Helper()
	list, err := f.clients.CoordinationV1().Leases(f.namespace).List(f.Context(), metav1.ListOptions{})
	f.noError(err)
	for _, lease := range list.Items {
		holder := ptr.Deref(lease.Spec.HolderIdentity, "")
		if lease.Name == leaseName && holder != "" || strings.HasPrefix(lease.Name, leaseName+"-member-") {
			f.Errorf("after all replicas have left, the lease %s is held by %q", lease.Name, holder)
		}
	}
}
