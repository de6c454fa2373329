package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// leaseName is the lease of the platform's replicas.
const leaseName = "dynamic-controller"

func (c *theCluster) lease(ctx context.Context) (*coordinationv1.Lease, error) {
	return c.kube.CoordinationV1().Leases(c.namespace).Get(ctx, leaseName, metav1.GetOptions{})
}

// ownTheLease makes sure that nobody else's replicas use the lease, and has it deleted in the end.
func (c *theCluster) ownTheLease(ctx context.Context) error {
	lease, err := c.lease(ctx)
	if err == nil {
		return fmt.Errorf("there is a lease %s/%s, of a platform that runs or of an earlier demonstration that was killed; its holder is %q",
			c.namespace, leaseName, holder(lease))
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	c.ownLease = true
	return nil
}

// leader returns the replica that the lease names. Its identity is the replica's name and what tells its process from
// later ones.
func (c *theCluster) leader(ctx context.Context) (replica string, err error) {
	err = see(ctx, sight{"a replica leads", func(ctx context.Context) error {
		lease, err := c.lease(ctx)
		if err != nil {
			return err
		}
		if holder(lease) == "" {
			return errors.New("nobody holds the lease")
		}
		replica = nameOf(holder(lease))
		return nil
	}})
	return replica, err
}

func holder(lease *coordinationv1.Lease) (identity string) {
	return ptr.Deref(lease.Spec.HolderIdentity, "")
}

func nameOf(identity string) string { return identity[:max(strings.LastIndex(identity, "_"), 0)] }

// takeOver kills the leader, and changes WebApps and deletes a child while nobody leads.
func takeOver(ctx context.Context, say func(string, ...any), c *theCluster, p platform) error {
	before, err := c.lease(ctx)
	if err != nil {
		return err
	}
	old, duration := nameOf(holder(before)), time.Duration(ptr.Deref(before.Spec.LeaseDurationSeconds, 0))*time.Second
	watched, err := c.watchPages(ctx)
	if err != nil {
		return err
	}
	defer watched.stop()
	if err := p.kill(ctx, old); err != nil {
		return err
	}
	killed := time.Now()
	say("killed %s, which leads, without warning; its lease lasts %s", old, duration)

	changed, err := changeSome(ctx, c)
	if err != nil {
		return err
	}
	when := "while nobody leads"
	if now, err := c.lease(ctx); err != nil || holder(now) != holder(before) {
		when = "meanwhile"
	}
	say("changed or made %d WebApps and deleted a child %s", len(changed), when)

	// A crash costs the lease's duration and what a candidate waits between two looks.
	if err := seeWithin(ctx, 2*duration+electionSlack, sight{"another replica leads", func(ctx context.Context) error {
		now, err := c.lease(ctx)
		if err == nil && (holder(now) == holder(before) || holder(now) == "") {
			err = fmt.Errorf("the lease names %q", holder(now))
		}
		return err
	}}); err != nil {
		return err
	}
	took := time.Since(killed)
	next, err := c.leader(ctx)
	if err != nil {
		return err
	}
	for name, generation := range changed {
		if err := errors.Join(see(ctx, c.ready(name, generation)), see(ctx, c.page(name, meanwhile, ""))); err != nil {
			return err
		}
	}
	if err := see(ctx, c.page("first", "Good day and welcome", "")); err != nil {
		return err
	}
	say("%s leads %s after the kill; after %s all is as it should be", next, milliseconds(took), since(killed))
	if err := onceEach(ctx, c, watched, changed); err != nil {
		return err
	}
	say("nothing was missed and nothing doubled: a watch saw each of the %d pages written once", len(changed))
	if err := p.revive(ctx, old); err != nil {
		return err
	}
	if next == old { // a container that was restarted in time
		say("%s runs again, and leads", old)
		return nil
	}
	say("%s runs again and stands by", old)
	return nil
}

// electionSlack is for what a takeover takes beyond the lease's end, on a busy machine.
const electionSlack = 10 * time.Second

// meanwhile is what the pages say that were changed while nobody led.
const meanwhile = "Nobody leads and welcome"

// changeSome changes the WebApps of writeMany, makes one more, and deletes a child of another. It returns the generations.
func changeSome(ctx context.Context, c *theCluster) (changed map[string]int64, err error) {
	changed = map[string]int64{}
	names := []string{"made-meanwhile"}
	for i := range many {
		names = append(names, numbered(i))
	}
	for _, name := range names {
		if changed[name], err = c.write(ctx, name, "Nobody leads"); err != nil {
			return nil, err
		}
	}
	return changed, c.in(configMaps).Delete(ctx, "first-page", metav1.DeleteOptions{})
}

// onceEach is an error if one of the pages was written more or less than once. One that is written after them tells when
// the watch has told all.
func onceEach(ctx context.Context, c *theCluster, watched *pageWatch, changed map[string]int64) error {
	if _, err := c.write(ctx, "first", "Last"); err != nil {
		return err
	}
	if err := see(ctx, sight{"a watch tells of the last page", func(context.Context) error {
		if watched.count("first", "Last and welcome") == 0 {
			return errors.New("it does not")
		}
		return nil
	}}); err != nil {
		return err
	}
	return watched.notOnce(slices.Collect(maps.Keys(changed)), meanwhile)
}
