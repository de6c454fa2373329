package replica

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// create creates a Lease that is held.
func (s *fakeLeases) create(t testing.TB, name, holder string, duration time.Duration) {
	t.Helper()
	now := metav1.NowMicro()
	_, err := (&fakeLeaseClient{server: s}).Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: ptr.To(int32(duration / time.Second)), RenewTime: &now,
			AcquireTime: ptr.To(metav1.NewMicroTime(now.Add(-time.Millisecond))),
		},
	}, metav1.CreateOptions{})
	wantNoError(t, err)
}

// since returns the runs after the first n.
func (r *shardRuns) since(n int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.runs[n:])
}

func (s *fakeLeases) isReleased(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return isReleased(resourcelock.LeaseSpecToLeaderElectionRecord(&s.leases[name].Spec))
}

func TestH3_WriteNeedsTheCertaintyThatTheFleetHoldsItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFleetRig(t, newFakeLeases(), newShardRuns(), "a")
		fence := r.member.shards.newShard(0, 8).leadership.fence
		open := func() (*term, context.Context) {
			term := fence.open(r.member.shards.clock.now(), r.options)
			ctx, _ := term.context(t.Context())
			return term, ctx
		}
		_, ctx := open() // no renewal has been observed
		wantErrorIs(t, r.write(ctx), ErrNotLeading)

		r.member.shards.exclusion.Renew(r.member.shards.clock.now(), 60)
		_, ctx = open()
		wantNoError(t, r.write(ctx))
		r.member.shards.exclusion.Revoke(errors.New("the layout changes"))
		wantErrorIs(t, r.write(ctx), ErrNotLeading)
		r.member.shards.exclusion.Renew(r.member.shards.clock.now(), 60)
		wantErrorIs(t, r.write(ctx), ErrNotLeading) // a term that is over does not begin again

		earlier := ctx
		term, ctx := open()
		wantErrorIs(t, r.write(earlier), ErrNotLeading)
		r.member.shards.exclusion.Renew(r.member.shards.clock.now(), 1)
		time.Sleep(899 * time.Millisecond)
		wantNoError(t, r.write(ctx))
		time.Sleep(time.Millisecond) // a tenth of the duration is not used
		wantErrorIs(t, r.write(ctx), ErrNotLeading)
		wantErrorIs(t, term.loss(), ErrLeaseLost)

		// The wall clock counts too.
		r.member.shards.exclusion.Renew(r.member.shards.clock.now(), 60)
		_, ctx = open()
		r.ahead.Add(int64(time.Minute))
		wantErrorIs(t, r.write(ctx), ErrNotLeading)
	})
}

func TestH3_WriteNeedsATermOfThisReplica(t *testing.T) {
	s, runs := newFakeLeases(), newShardRuns()
	a, b := newFleetRig(t, s, runs, "a"), newFleetRig(t, s, runs, "b")
	var contexts []context.Context
	for _, r := range []*fleetRig{a, b} {
		r.member.shards.exclusion.Renew(r.member.shards.clock.now(), 60)
		for _, f := range []*fence{r.leadership.fence, r.member.shards.newShard(0, 8).leadership.fence} {
			ctx, _ := f.open(r.member.shards.clock.now(), r.options).context(t.Context())
			contexts = append(contexts, ctx)
		}
	}
	for i, ctx := range contexts {
		err := send(ctx, a.http, http.MethodPost, nil)
		if i < 2 {
			wantNoError(t, err)
		} else {
			wantErrorIs(t, err, ErrNotLeading)
		}
	}
	wantErrorIs(t, a.write(t.Context()), ErrNotLeading)
}

func TestExpected_IsThePlannedLeaderIfItIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeLeases()
		m := newFleetRig(t, s, newShardRuns(), "a").member
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go m.view.Run(ctx, m.log, m.clients.watches.Leases("default"))
		other := m.config
		other.Identity = "other"
		announced := fleet.NewMembership(other, func(_ string, err error) { wantNoError(t, err) })
		go announced.Run(ctx)
		m.shards.plan.Store(&plan.Plan{{Leader: "other"}, {Leader: "other"}, {Leader: m.config.Identity}, {}})
		expected := func(index int, want string) {
			t.Helper()
			if got := m.shards.expected(index); got != want {
				t.Errorf("expected to lead shard %d: %q, want %q", index, got, want)
			}
		}
		expected(0, "") // it is not alive
		announced.Publish(fleet.State{Shards: 4, Layout: 4, Warm: []int{0}})
		synctest.Wait()
		expected(0, "other")
		expected(1, "") // it does not keep the shard warm
		expected(2, "")
		expected(3, "")
		expected(4, "")
		announced.Publish(fleet.State{Shards: 4, Layout: 4, Warm: []int{0}, Leaving: true})
		synctest.Wait()
		expected(0, "")
		announced.Publish(fleet.State{Shards: 4, Layout: 8, Warm: []int{0}})
		synctest.Wait()
		expected(0, "")
		cancel()
		synctest.Wait()
	})
}

// TestH2_NewLeaderOfTheFleetDoesNotCreateMissingLeases checks that the Lease of a shard that was deleted while the
// shard is led is not created as one that was released.
func TestH2_NewLeaderOfTheFleetDoesNotCreateMissingLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		rigs := startFleet(t, s, runs, "a b c")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
		time.Sleep(30 * time.Second)
		var leader, other *fleetRig
		for _, r := range rigs {
			if strings.HasSuffix(s.holder("test"), "/"+r.options.Identity) {
				leader = r
			} else {
				other = r
			}
		}
		led := runs.shardsOf(other.name)
		other.failFor(func(name string) bool { return name == "test" || strings.HasPrefix(name, "test-shard-") })
		for _, index := range led {
			s.edit(leasename.Shard("test", index), nil)
		}
		wantNoError(t, leader.stop())
		time.Sleep(2 * testLeaseDuration)
		runs.check(t)
	})
}

// TestH6_ShardsContinueWhileTheFleetsLeaderIsReplaced checks that a crash of the fleet's leader does not affect the
// shards that other members lead.
func TestH6_ShardsContinueWhileTheFleetsLeaderIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		rigs := startFleet(t, s, runs, "a b c")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
		time.Sleep(30 * time.Second)
		plain, whole := newPlain(t, s, "plain")
		plain.start()
		time.Sleep(time.Second)
		crashed := 0
		for i, r := range rigs {
			if strings.HasSuffix(s.holder("test"), "/"+r.options.Identity) {
				crashed = i
			}
		}
		rigs[crashed].crash()
		time.Sleep(2 * fleet.LeaseFactor * testLeaseDuration)
		for i, r := range rigs {
			if n := r.log.count("Lease lost"); i != crashed && n > 0 {
				t.Errorf("%s has lost %d terms:\n%s", r.name, n, r.log)
			}
		}
		wantStarts(t, whole, 0, 0)
		runs.check(t)
	})
}

// TestH2_MovesOnlyToAWarmCopy checks that a leader does not step down before the planned leader has synced, whatever
// the plan says.
func TestH2_MovesOnlyToAWarmCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		a := startFleet(t, s, runs, "a")[0]
		eventually(t, maxFleetStart, func() bool { return runs.count() == 8 })
		b := newFleetRig(t, s, runs, "b")
		b.warmUp.Store(int64(time.Hour))
		b.start()
		time.Sleep(10 * time.Second)
		forged := make(plan.Plan, 8)
		for i := range forged {
			forged[i] = plan.Assignment{Leader: b.options.Identity, Standby: a.options.Identity, From: a.options.Identity}
		}
		text, err := forged.Encode()
		wantNoError(t, err)
		before := len(runs.since(0))
		for range 100 { // the planner replaces the plan
			s.edit(leasename.Plan("test"), func(lease *coordinationv1.Lease) {
				lease.Annotations[fleet.PlanAnnotation] = text
			})
			time.Sleep(100 * time.Millisecond)
		}
		if after := runs.since(before); len(after) > 0 {
			t.Errorf("shards have moved: %v", after)
		}
	})
}

// TestLayout_OnlyItsFirstLeaderCreatesTheLeasesOfShards checks that a Lease that is missing later is not created as one
// that was released, because the shard may still be led.
func TestLayout_OnlyItsFirstLeaderCreatesTheLeasesOfShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		first, second := newFleetRig(t, s, runs, "a").member, newFleetRig(t, s, runs, "b").member
		runPlanner := func(m *fleetMember) {
			ctx, cancel := context.WithCancel(t.Context())
			go m.leader.planner.Run(ctx)
			synctest.Wait()
			cancel()
			synctest.Wait()
		}
		wantNoError(t, first.lease.Create(t.Context(), heldRecord(first.config.Identity)))
		s.create(t, "test-shard-5", "other", testLeaseDuration)
		runPlanner(first)
		for i := range 8 {
			if name := leasename.Shard("test", i); i != 5 && !s.isReleased(name) {
				t.Errorf("%s is not released", name)
			}
		}
		if got := s.holder("test-shard-5"); got != "other" {
			t.Errorf("shard 5 is held by %q", got)
		}
		s.edit("test-shard-3", nil)
		_, _, err := second.lease.Get(t.Context())
		wantNoError(t, err)
		wantNoError(t, second.lease.Update(t.Context(), heldRecord(second.config.Identity)))
		for _, m := range []*fleetMember{first, second} {
			runPlanner(m)
		}
		if slices.Contains(s.names(), "test-shard-3") {
			t.Error("the missing lease was created")
		}
	})
}

// TestLayout_WaitsForTheWarmRunnablesOfTheOldOne checks that a member keeps shards of only one layout warm.
func TestLayout_WaitsForTheWarmRunnablesOfTheOldOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		var starts atomic.Int64
		var mu sync.Mutex
		warm := map[string]int{}
		old := startFleet(t, s, runs, "a", shardOptions(4))
		eventually(t, time.Minute, func() bool { return runs.count() == 4 })
		for _, name := range []string{"b", "c"} {
			r := newFleetRig(t, s, runs, name, shardOptions(16))
			wantNoError(t, r.Register("slow", RunFunc(func(ctx context.Context) error {
				if starts.Add(1) > 1000 {
					return errors.New("too many starts")
				}
				index, count := Shard(ctx)
				mu.Lock()
				warm[fmt.Sprint(name, count)]++
				if warm[name+"4"] > 0 && warm[name+"16"] > 0 {
					t.Errorf("%s keeps shards of two layouts warm", name)
				}
				mu.Unlock()
				<-ctx.Done()
				if index == 0 {
					time.Sleep(4500 * time.Millisecond)
				}
				mu.Lock()
				defer mu.Unlock()
				warm[fmt.Sprint(name, count)]--
				return nil
			}), ScopeWarmShard))
			r.start()
		}
		time.Sleep(30 * time.Second)
		starts.Store(0)
		wantNoError(t, old[0].stop())
		time.Sleep(30 * time.Second)
		if n := starts.Load(); n > 100 {
			t.Errorf("runnables of warm shards were started %d times", n)
		}
		if n := runs.count(); n != 16 {
			t.Errorf("%d shards are led", n)
		}
	})
}

// TestH7_ForgedMembersAndPlansDoNotStopTheFleet checks that the fleet recovers from invalid states and plans.
func TestH7_ForgedMembersAndPlansDoNotStopTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		rigs := startFleet(t, s, runs, "a b c")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
		for i, state := range []string{
			`{"shards":8,"layout":8,"warm":[-1,1000,0,0,0,7,8]}`, `{"shards":-5,"layout":-1,"warm":[]}`,
			`{"shards":8,"layout":8,"node":"` + strings.Repeat("n", 10000) + `"}`, `{`, ``, `null`, `[]`,
		} {
			for _, r := range rigs {
				s.edit(leasename.Member("test", r.options.Identity), func(l *coordinationv1.Lease) {
					l.Annotations[fleet.StateAnnotation] = state
				})
			}
			holder := fmt.Sprintf("forged%d", i)
			s.create(t, leasename.Member("test", holder), holder, time.Hour)
			s.edit(leasename.Member("test", holder), func(l *coordinationv1.Lease) {
				l.Labels = map[string]string{leasename.Label: "test"}
				l.Annotations = map[string]string{fleet.StateAnnotation: state}
			})
			time.Sleep(20 * time.Second)
		}
		for _, text := range []string{"x", "{}", strings.Repeat("a", 100000)} {
			s.edit("test-plan", func(l *coordinationv1.Lease) { l.Annotations[fleet.PlanAnnotation] = text })
			time.Sleep(5 * time.Second)
		}
		time.Sleep(time.Minute)
		for _, r := range rigs {
			if err := r.Ready(); err != nil {
				t.Errorf("%s has ended: %v", r.name, r.result())
			}
		}
		if n := runs.count(); n != 8 {
			t.Errorf("%d shards are led", n)
		}
		runs.check(t)
	})
}

// TestLayout_IsKeptAfterTheLeaderHasChangedItBefore checks that a member which has removed a layout releases the next
// one for members only.
func TestLayout_IsKeptAfterTheLeaderHasChangedItBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		a := startFleet(t, s, runs, "a", shardOptions(4))[0]
		eventually(t, maxFleetStart, func() bool { return runs.count() == 4 })
		b := startFleet(t, s, runs, "b", shardOptions(16))[0]
		time.Sleep(10 * time.Second)
		wantNoError(t, a.stop())
		eventually(t, time.Minute, func() bool { return runs.count() == 16 })
		c := startFleet(t, s, runs, "c", shardOptions(16))[0]
		eventually(t, time.Minute, isBalanced(runs, 16, "b", "c"))
		if h, _ := fleet.ParseHolder(s.holder("test")); h.Leader != b.options.Identity {
			t.Fatalf("the lease is held by %q", h.Leader)
		}
		c.failFor(func(name string) bool { return name == "test" }) // it does not acquire the lease at once
		wantNoError(t, b.stop())
		if got, want := s.holder("test"), "shards=16/"; got != want {
			t.Errorf("the lease is held by %q, want %q", got, want)
		}
	})
}

// TestH4_PlannedLeaderRequestsTheLeaseAtOnce checks that a move does not take RetryPeriod.
func TestH4_PlannedLeaderRequestsTheLeaseAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		startFleet(t, s, runs, "a", defaultDurations)
		eventually(t, 5*time.Minute, func() bool { return runs.count() == 8 })
		runs.resetGaps()
		startFleet(t, s, runs, "b", defaultDurations)
		eventually(t, 5*time.Minute, isBalanced(runs, 8, "a", "b"))
		if gap := runs.longestGap(); gap > 300*time.Millisecond {
			t.Errorf("a shard was not led for %s", gap)
		}
	})
}

// TestH6_ShardsAreNotMovedWhileMembersComeAndGo checks that the planner waits before it moves shards for balance.
func TestH6_ShardsAreNotMovedWhileMembersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		startFleet(t, s, runs, "a b")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b"))
		time.Sleep(time.Minute)
		before := len(runs.since(0))
		startFleet(t, s, runs, "c")
		time.Sleep(fleet.SettlePeriods*testLeaseDuration - testRetryPeriod)
		if moved := runs.since(before); len(moved) > 0 {
			t.Errorf("shards have moved: %v", moved)
		}
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
	})
}

// TestH9_LeaseOfACrashedMemberIsDeleted checks that restarts leave no Leases behind.
func TestH9_LeaseOfACrashedMemberIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		rigs := startFleet(t, s, runs, "a b c")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
		for _, r := range rigs[:2] {
			r.crash()
		}
		time.Sleep(3 * testLeaseDuration)
		for i, r := range rigs {
			if exists := slices.Contains(s.names(), leasename.Member("test", r.options.Identity)); exists != (i == 2) {
				t.Errorf("the lease of %s exists: %v", r.name, exists)
			}
		}
	})
}
