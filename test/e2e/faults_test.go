package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/test/e2e/internal/history"
)

// target is what a fault is injected into: a replica, and the lease that it holds or that it is a candidate for.
type target struct {
	*member
	lease string
}

// fault is a temporary failure of a replica or of something that it depends on.
type fault struct {
	name string
	// inject causes the fault and repairs it after d.
	inject func(f *fleet, at target, d time.Duration)
	// isLocal is set if the fault affects only the replica into which it is injected. Such a fault can be injected during
	// another fault.
	isLocal bool
	// isMove is set if the fault moves shards, apart from its effect on one replica. A local fault is often injected
	// during such a fault.
	isMove bool
	// isBrief is set if the fault has its effect before d has passed.
	isBrief bool
	// needsHistory is set if the fault reads events that only replicas of the engine log.
	needsHistory bool
}

var faults = []fault{
	{name: "graceful shutdown", inject: (*fleet).shutDown},
	{name: "kill -9", inject: (*fleet).kill},
	{name: "stop and continue", inject: (*fleet).pause, isLocal: true},
	{name: "silent partition", inject: (*fleet).partition, isLocal: true},
	{name: "silent partition with data loss", inject: (*fleet).partitionDropping, isLocal: true},
	{name: "connection resets", inject: (*fleet).resetConnections, isLocal: true},
	{name: "API server restart", inject: (*fleet).restartAPIServer},
	{name: "lease deleted", inject: (*fleet).deleteLease},
	{name: "lease emptied", inject: (*fleet).emptyLease},
	{name: "lease deleted during a partition", inject: duringPartition((*fleet).deleteLease)},
	{name: "lease emptied during a partition", inject: duringPartition((*fleet).emptyLease)},
	{name: "lease taken by an unknown identity", inject: (*fleet).holdLeaseAsUnknown},
	{name: "lease taken by another replica", inject: (*fleet).passLease, needsHistory: true},
}

func (f *fleet) shutDown(at target, d time.Duration) {
	f.terminate(at.member)
	f.wait(d)
	f.start(at.member)
}

func (f *fleet) kill(at target, d time.Duration) {
	f.log.Add(history.Event{Kind: history.Killed, Process: at.processName()})
	at.process.kill()
	f.wait(d)
	f.start(at.member)
}

func (f *fleet) pause(at target, d time.Duration) {
	f.log.Add(history.Event{Kind: history.Stopped, Process: at.processName()})
	at.process.signal(f.T, syscall.SIGSTOP)
	f.wait(d)
	f.resume(at.member)
}

func (f *fleet) resume(m *member) {
	f.log.Add(history.Event{Kind: history.Resumed, Process: m.processName()})
	m.process.signal(f.T, syscall.SIGCONT)
}

// stall logs that a replica cannot reach the API server until the returned function is called. The first event of the
// pair precedes the fault, and the second one follows it.
func (f *fleet) stall(m *member) (heal func()) {
	process := m.processName()
	f.log.Add(history.Event{Kind: history.Stalled, Process: process})
	return func() { f.log.Add(history.Event{Kind: history.Healed, Process: process}) }
}

func (f *fleet) partition(at target, d time.Duration) {
	defer f.stall(at.member)()
	at.proxy.Stall()
	f.wait(d)
	at.proxy.Heal()
}

func (f *fleet) partitionDropping(at target, d time.Duration) {
	defer f.stall(at.member)()
	at.proxy.Stall()
	f.wait(d)
	at.proxy.HealDropping()
}

func (f *fleet) resetConnections(at target, d time.Duration) {
	defer f.stall(at.member)()
	at.proxy.Reset()
	f.wait(d)
	at.proxy.Heal()
}

func (f *fleet) restartAPIServer(_ target, d time.Duration) {
	f.log.Add(history.Event{Kind: history.Down})
	f.noError(f.cluster.APIServer().Kill())
	f.wait(d)
	ctx, cancel := context.WithTimeout(f.Context(), timeout)
	defer cancel()
	f.noError(f.cluster.APIServer().Start(ctx))
	f.noError(f.cluster.WaitReady(ctx))
	f.log.Add(history.Event{Kind: history.Up})
}

func (f *fleet) deleteLease(at target, d time.Duration) {
	f.noError(f.removeLease(at.lease))
	f.wait(d)
}

func (f *fleet) removeLease(name string) error {
	f.log.Add(history.Event{Kind: history.Forced, Lease: name})
	return f.clients.CoordinationV1().Leases(f.namespace).Delete(f.Context(), name, metav1.DeleteOptions{})
}

func (f *fleet) emptyLease(at target, d time.Duration) {
	f.noError(f.setHolder(at.lease, ""))
	f.wait(d)
}

// duringPartition returns a function that injects a fault while the replica is partitioned from the API server and
// still considers itself the leader.
func duringPartition(inject func(*fleet, target, time.Duration)) func(*fleet, target, time.Duration) {
	return func(f *fleet, at target, d time.Duration) {
		defer f.stall(at.member)()
		at.proxy.Stall()
		defer at.proxy.Heal()
		inject(f, at, d)
	}
}

// holdLeaseAsUnknown makes an unknown identity the holder of the lease.
func (f *fleet) holdLeaseAsUnknown(at target, d time.Duration) {
	f.noError(f.setHolder(at.lease, "unknown"))
	f.wait(d)
}

// passLease makes another replica the holder of the lease. That replica can observe this before the old leader does.
func (f *fleet) passLease(at target, d time.Duration) {
	to := f.identities()[f.other(at.member).processName()]
	f.log.Add(history.Event{Kind: history.Taking, Lease: at.lease, Holder: to})
	f.noError(f.setHolder(at.lease, f.holderOf(at.lease, to)))
	f.log.Add(history.Event{Kind: history.Taken, Lease: at.lease, Holder: to})
	f.wait(d)
}

// holderOf returns the holder of a lease if it is held by a replica. That of a fleet's lease records the number of
// shards.
func (f *fleet) holderOf(lease, identity string) string {
	if f.shards > 0 && lease == leaseName {
		return fmt.Sprintf("shards=%d/%s", f.shards, identity)
	}
	return identity
}

// setHolder sets the holder of a lease, regardless of the current holder.
func (f *fleet) setHolder(lease, holder string) error {
	f.log.Add(history.Event{Kind: history.Forced, Lease: lease})
	encoded, err := json.Marshal(holder)
	if err != nil {
		return err
	}
	_, err = f.clients.CoordinationV1().Leases(f.namespace).Patch(f.Context(), lease, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"holderIdentity":%s}}`, encoded), metav1.PatchOptions{})
	return err
}
