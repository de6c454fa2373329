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

// fault is a temporary failure of a replica or of something that it depends on.
type fault struct {
	name string
	// inject causes the fault and repairs it after d.
	inject func(f *fleet, m *member, d time.Duration)
	// isLocal is set if the fault affects only the replica into which it is injected. Such a fault can be injected during
	// another fault.
	isLocal bool
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

func (f *fleet) shutDown(m *member, d time.Duration) {
	f.terminate(m)
	f.wait(d)
	f.start(m)
}

func (f *fleet) kill(m *member, d time.Duration) {
	m.process.kill()
	f.log.Add(history.Event{Kind: history.Killed, Process: m.processName()})
	f.wait(d)
	f.start(m)
}

func (f *fleet) pause(m *member, d time.Duration) {
	m.process.signal(f.T, syscall.SIGSTOP)
	m.paused = true
	f.wait(d)
	f.log.Add(history.Event{Kind: history.Resumed, Process: m.processName()})
	m.process.signal(f.T, syscall.SIGCONT)
	m.paused = false
}

func (f *fleet) partition(m *member, d time.Duration) {
	m.proxy.Stall()
	f.wait(d)
	m.proxy.Heal()
}

func (f *fleet) partitionDropping(m *member, d time.Duration) {
	m.proxy.Stall()
	f.wait(d)
	m.proxy.HealDropping()
}

func (f *fleet) resetConnections(m *member, d time.Duration) {
	m.proxy.Reset()
	f.wait(d)
	m.proxy.Heal()
}

func (f *fleet) restartAPIServer(_ *member, d time.Duration) {
	f.noError(f.cluster.APIServer().Kill())
	f.wait(d)
	ctx, cancel := context.WithTimeout(f.Context(), timeout)
	defer cancel()
	f.noError(f.cluster.APIServer().Start(ctx))
	f.noError(f.cluster.WaitReady(ctx))
}

func (f *fleet) deleteLease(_ *member, d time.Duration) {
	f.noError(f.clients.CoordinationV1().Leases(f.namespace).Delete(f.Context(), leaseName, metav1.DeleteOptions{}))
	f.wait(d)
}

func (f *fleet) emptyLease(_ *member, d time.Duration) {
	f.noError(f.setHolder(""))
	f.wait(d)
}

// duringPartition returns a function that injects a fault while the replica is partitioned from the API server and
// still considers itself the leader.
func duringPartition(inject func(*fleet, *member, time.Duration)) func(*fleet, *member, time.Duration) {
	return func(f *fleet, m *member, d time.Duration) {
		m.proxy.Stall()
		defer m.proxy.Heal()
		inject(f, m, d)
	}
}

// holdLeaseAsUnknown makes an unknown identity the holder of the lease.
func (f *fleet) holdLeaseAsUnknown(_ *member, d time.Duration) {
	f.noError(f.setHolder("unknown"))
	f.wait(d)
}

// passLease makes another replica the holder of the lease. That replica can observe this before the old leader does.
func (f *fleet) passLease(m *member, d time.Duration) {
	to := f.identities()[f.other(m).processName()]
	f.log.Add(history.Event{Kind: history.Taking, Holder: to})
	f.noError(f.setHolder(to))
	f.log.Add(history.Event{Kind: history.Taken, Holder: to})
	f.wait(d)
}

// setHolder sets the holder of the lease, regardless of the current holder.
func (f *fleet) setHolder(identity string) error {
	holder, err := json.Marshal(identity)
	if err != nil {
		return err
	}
	_, err = f.clients.CoordinationV1().Leases(f.namespace).Patch(f.Context(), leaseName, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"holderIdentity":%s}}`, holder), metav1.PatchOptions{})
	return err
}
