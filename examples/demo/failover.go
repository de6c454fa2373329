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

// leaseName is the name of the lease that the replicas compete for.
const leaseName = "dynamic-controller"

func (c *demoCluster) lease(ctx context.Context) (*coordinationv1.Lease, error) {
	return c.kube.CoordinationV1().Leases(c.namespace).Get(ctx, leaseName, metav1.GetOptions{})
}

// claimLease returns an error if the lease already exists. Otherwise, it records that close must delete the lease.
func (c *demoCluster) claimLease(ctx context.Context) error {
	lease, err := c.lease(ctx)
	if err == nil {
		return fmt.Errorf("the lease %s/%s exists, with the holder %q: "+
			"stop the platform that uses it, or delete it if it is left over from an earlier demonstration",
			c.namespace, leaseName, holder(lease))
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	c.ownLease = true
	return nil
}

// leader returns the name of the replica that holds the lease. The identity in the lease is the name with a suffix that
// is unique to the process.
func (c *demoCluster) leader(ctx context.Context) (replica string, err error) {
	err = waitFor(ctx, condition{"a replica leads", func(ctx context.Context) error {
		lease, err := c.lease(ctx)
		if err != nil {
			return err
		}
		if holder(lease) == "" {
			return errors.New("the lease has no holder")
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

// failOver kills the leader. It then changes WebApps and deletes a child before another replica leads.
func failOver(ctx context.Context, say printf, c *demoCluster, p platform) error {
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
	say("killed the leader %s with SIGKILL; its lease lasts %s", old, duration)

	changed, err := changeSome(ctx, c)
	if err != nil {
		return err
	}
	when := "while no replica leads"
	if now, err := c.lease(ctx); err != nil || holder(now) != holder(before) {
		when = "meanwhile"
	}
	say("changed or created %d WebApps and deleted a child %s", len(changed), when)

	// After a crash, another replica can lead only after the lease has expired and the replica has noticed this.
	replaced := func(ctx context.Context) error {
		now, err := c.lease(ctx)
		if err == nil && (holder(now) == holder(before) || holder(now) == "") {
			err = fmt.Errorf("the lease has the holder %q", holder(now))
		}
		return err
	}
	if err := waitWithin(ctx, 2*duration+electionSlack, condition{"another replica leads", replaced}); err != nil {
		return err
	}
	took := time.Since(killed)
	next, err := c.leader(ctx)
	if err != nil {
		return err
	}
	for name, generation := range changed {
		ready, page := c.ready(name, generation), c.page(name, meanwhile, "")
		if err := errors.Join(waitFor(ctx, ready), waitFor(ctx, page)); err != nil {
			return err
		}
	}
	if err := waitFor(ctx, c.page("first", "Good day and welcome", "")); err != nil {
		return err
	}
	say("%s leads %s after the kill; after %s all changes are applied", next, milliseconds(took), since(killed))
	if err := checkWrittenOnce(ctx, c, watched, changed); err != nil {
		return err
	}
	say("no write is missing or duplicated: a watch received each of the %d pages once", len(changed))
	if err := p.revive(ctx, old); err != nil {
		return err
	}
	if next == old { // its container was restarted before the lease expired
		say("%s runs again and leads", old)
		return nil
	}
	say("%s runs again as a standby", old)
	return nil
}

// electionSlack is the maximum time on a busy machine from the expiry of the lease until another replica leads.
const electionSlack = 10 * time.Second

// meanwhile is the text of the pages that are changed while no replica leads.
const meanwhile = "No leader and welcome"

// changeSome changes the WebApps created by writeMany, creates another one, and deletes a child of the first one. It
// returns the generations of the changed WebApps, by name.
func changeSome(ctx context.Context, c *demoCluster) (changed map[string]int64, err error) {
	changed = map[string]int64{}
	names := []string{"created-meanwhile"}
	for i := range many {
		names = append(names, numbered(i))
	}
	for _, name := range names {
		if changed[name], err = c.write(ctx, name, "No leader"); err != nil {
			return nil, err
		}
	}
	return changed, c.in(configMaps).Delete(ctx, "first-page", metav1.DeleteOptions{})
}

// checkWrittenOnce returns an error unless each page was written exactly once. It first writes another page and waits
// for that event, so that the watch has received all earlier ones.
func checkWrittenOnce(ctx context.Context, c *demoCluster, watched *pageWatch, changed map[string]int64) error {
	if _, err := c.write(ctx, "first", "Last"); err != nil {
		return err
	}
	if err := waitFor(ctx, condition{"the watch has received the event for the last page", func(context.Context) error {
		if watched.count("first", "Last and welcome") == 0 {
			return errors.New("the event is missing")
		}
		return nil
	}}); err != nil {
		return err
	}
	return watched.checkOnce(slices.Collect(maps.Keys(changed)), meanwhile)
}
