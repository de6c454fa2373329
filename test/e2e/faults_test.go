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

// fault is one way to break a replica, or what it needs, for some time.
type fault struct {
	name string
	// strike breaks it and mends it again.
	strike func(f *fleet, m *member, d time.Duration)
	// isOwn faults are of the replica alone: they can strike while another fault does.
	isOwn bool
}

var faults = []fault{
	{name: "graceful end", strike: (*fleet).endGracefully},
	{name: "kill -9", strike: (*fleet).killHard},
	{name: "stop and continue", strike: (*fleet).pause, isOwn: true},
	{name: "silent partition", strike: (*fleet).partition, isOwn: true},
	{name: "silent partition that loses what it held", strike: (*fleet).partitionDropping, isOwn: true},
	{name: "loud partition", strike: (*fleet).cutOff, isOwn: true},
	{name: "API server restart", strike: (*fleet).restartAPIServer},
	{name: "lease deleted", strike: (*fleet).deleteLease},
	{name: "lease emptied", strike: (*fleet).emptyLease},
	{name: "lease deleted during a partition", strike: behindItsBack((*fleet).deleteLease)},
	{name: "lease emptied during a partition", strike: behindItsBack((*fleet).emptyLease)},
	{name: "lease taken by a stranger", strike: (*fleet).takeLease},
	{name: "lease given to another", strike: (*fleet).giveLease},
}

func (f *fleet) endGracefully(m *member, d time.Duration) {
	f.terminate(m)
	f.lasts(d)
	f.start(m)
}

func (f *fleet) killHard(m *member, d time.Duration) {
	m.process.kill()
	f.log.Add(history.Event{Kind: history.Killed, Who: m.who()})
	f.lasts(d)
	f.start(m)
}

func (f *fleet) pause(m *member, d time.Duration) {
	m.process.signal(f.T, syscall.SIGSTOP)
	m.paused = true
	f.lasts(d)
	f.log.Add(history.Event{Kind: history.Resumed, Who: m.who()})
	m.process.signal(f.T, syscall.SIGCONT)
	m.paused = false
}

func (f *fleet) partition(m *member, d time.Duration) {
	m.proxy.Stall()
	f.lasts(d)
	m.proxy.Heal()
}

func (f *fleet) partitionDropping(m *member, d time.Duration) {
	m.proxy.Stall()
	f.lasts(d)
	m.proxy.HealDropping()
}

func (f *fleet) cutOff(m *member, d time.Duration) {
	m.proxy.Reset()
	f.lasts(d)
	m.proxy.Heal()
}

func (f *fleet) restartAPIServer(_ *member, d time.Duration) {
	f.noError(f.cluster.APIServer().Kill())
	f.lasts(d)
	ctx, cancel := context.WithTimeout(f.Context(), patience)
	defer cancel()
	f.noError(f.cluster.APIServer().Start(ctx))
	f.noError(f.cluster.WaitReady(ctx))
}

func (f *fleet) deleteLease(_ *member, d time.Duration) {
	f.noError(f.clients.CoordinationV1().Leases(f.namespace).Delete(f.Context(), leaseName, metav1.DeleteOptions{}))
	f.lasts(d)
}

func (f *fleet) emptyLease(_ *member, d time.Duration) {
	f.noError(f.hold(""))
	f.lasts(d)
}

// behindItsBack strikes while the replica cannot look, and goes on believing that it leads for as long as it may.
func behindItsBack(strike func(*fleet, *member, time.Duration)) func(*fleet, *member, time.Duration) {
	return func(f *fleet, m *member, d time.Duration) {
		m.proxy.Stall()
		defer m.proxy.Heal()
		strike(f, m, d)
	}
}

// takeLease gives the lease to somebody who is not there.
func (f *fleet) takeLease(_ *member, d time.Duration) {
	f.noError(f.hold("stranger"))
	f.lasts(d)
}

// giveLease makes another replica the leader, which will find itself to be it while the old one has not looked.
func (f *fleet) giveLease(m *member, d time.Duration) {
	to := f.identities()[f.other(m).who()]
	f.log.Add(history.Event{Kind: history.Taking, Holder: to})
	f.noError(f.hold(to))
	f.log.Add(history.Event{Kind: history.Taken, Holder: to})
	f.lasts(d)
}

// hold writes a holder into the lease, whoever holds it.
func (f *fleet) hold(identity string) error {
	holder, err := json.Marshal(identity)
	if err != nil {
		return err
	}
	_, err = f.clients.CoordinationV1().Leases(f.namespace).Patch(f.Context(), leaseName, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"holderIdentity":%s}}`, holder), metav1.PatchOptions{})
	return err
}
