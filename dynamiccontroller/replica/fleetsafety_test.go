package replica

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/election"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// lockFor returns client-go's lock for a Lease of the fake server.
func lockFor(s *fakeLeases, name, identity string) *resourcelock.LeaseLock {
	return &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Name: name}, Client: &fakeLeaseClient{server: s},
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}
}

func heldRecord(holder string) record {
	now := metav1.Now()
	return record{HolderIdentity: holder, LeaseDurationSeconds: 3, RenewTime: now, AcquireTime: now}
}

// newTestFleetLease returns the fleet's Lease as a member sees it.
func newTestFleetLease(s *fakeLeases, identity string, shards int) *testFleetLease {
	client := &fakeLeaseClient{server: s}
	config := fleet.Config{
		Name: "test", Identity: identity, Shards: shards, LeaseDuration: testLeaseDuration,
		Client: client,
	}
	exclusion := fleet.NewExclusion(clock{}.now)
	return &testFleetLease{fleet.NewLease(lockFor(s, "test", identity), config, exclusion, func() {}), exclusion, client}
}

type testFleetLease struct {
	*fleet.Lease
	exclusion *fleet.Exclusion
	client    *fakeLeaseClient
}

// If two reads return different records, the later record was written after the first read was sent, but possibly long
// before the second one.
func TestExclusion_CountsFromTheReadThatDidNotReturnTheRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeLeases()
		leader, candidate := newTestFleetLease(s, "leader", 8), newTestFleetLease(s, "candidate", 8)
		ctx := t.Context()
		wantNoError(t, leader.Create(ctx, heldRecord("leader")))
		get := func() {
			_, _, err := candidate.Get(ctx)
			wantNoError(t, err)
		}
		get()
		if candidate.exclusion.Check() == nil {
			t.Error("certain after a single read, whose record can be old")
		}
		time.Sleep(time.Second)
		get()
		if candidate.exclusion.Check() == nil {
			t.Error("certain although the record has not changed")
		}
		wantNoError(t, leader.Update(ctx, heldRecord("leader")))
		time.Sleep(4 * time.Second)
		get() // the renewal was written up to 4 s ago
		wantNoError(t, candidate.exclusion.Check())
		const validity = fleet.LeaseFactor * testLeaseDuration * 9 / 10
		time.Sleep(validity - 4*time.Second - time.Millisecond)
		wantNoError(t, candidate.exclusion.Check())
		time.Sleep(time.Millisecond)
		wantErrorContains(t, candidate.exclusion.Check(), "in time")
	})
}

func TestExclusion_IsRevokedWhenTheLeaseIsNotThatOfAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, edit := range map[string]func(*fakeLeases){
			"deleted":                          func(s *fakeLeases) { s.edit("test", nil) },
			"held by a replica without shards": func(s *fakeLeases) { s.setHolder("test", "plain_1") },
		} {
			s := newFakeLeases()
			leader, candidate := newTestFleetLease(s, "leader", 8), newTestFleetLease(s, "candidate", 8)
			wantNoError(t, leader.Create(t.Context(), heldRecord("leader")))
			for range 2 {
				_, _, err := candidate.Get(t.Context())
				wantNoError(t, err)
				time.Sleep(time.Second)
				wantNoError(t, leader.Update(t.Context(), heldRecord("leader")))
			}
			wantNoError(t, candidate.exclusion.Check())
			edit(s)
			_, _, _ = candidate.Get(t.Context())
			if candidate.exclusion.Check() == nil {
				t.Errorf("%s: still certain", name)
			}
		}
	})
}

func TestFleetLease_RecordedLayoutHasPrecedence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeLeases()
		first, second := newTestFleetLease(s, "first", 8), newTestFleetLease(s, "second", 16)
		ctx := t.Context()
		wantNoError(t, first.Create(ctx, heldRecord("first")))
		wantNoError(t, first.Update(ctx, releasedRecord(0)))
		if holder := s.holder("test"); holder != "shards=8/" {
			t.Errorf("after the release, the holder is %q", holder)
		}
		r, _, err := second.Get(ctx)
		wantNoError(t, err)
		if !isReleased(r) {
			t.Errorf("a member cannot acquire %+v", r)
		}
		wantNoError(t, second.Update(ctx, heldRecord("second")))
		if holder := s.holder("test"); holder != "shards=8/second" {
			t.Errorf("the holder is %q", holder)
		}
	})
}

// The layout is read after the Lease of a shard was acquired, so that an announced change is noticed or waits.
func TestConfirm_LeaseIsReleasedUnlessTheLayoutAllowsToLead(t *testing.T) {
	for name, test := range map[string]struct {
		holder   string
		err      error
		excluded error
		leads    bool
	}{
		"the layout is the same":             {holder: "shards=8/x", leads: true},
		"nobody leads the fleet":             {holder: "shards=8/", leads: true},
		"the layout is another one":          {holder: "shards=16/x"},
		"the layout is changing":             {holder: "shards=8,changing/x"},
		"a replica without shards leads":     {holder: "x"},
		"the layout was removed":             {holder: ""},
		"the layout cannot be read":          {err: errDown},
		"the fleet's lease may have expired": {holder: "shards=8/x", excluded: errDown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeLeases()
				l := newTestFleetLease(s, "a", 8)
				l.exclusion.Renew(clock{}.now(), 100)
				if test.excluded != nil {
					l.exclusion.Revoke(test.excluded)
				}
				s.create(t, "test", test.holder, testLeaseDuration)
				if test.err != nil {
					l.client.down.Store(true)
				}
				began := false
				lease := lockFor(s, "test-shard-0", "a")
				wantNoError(t, lease.Create(t.Context(), releasedRecord(0)))
				e := newElector(testOptions(), election.Shard, lease, clock{})
				e.expected = func() string { return "" }
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				e.confirm = func(ctx context.Context) error {
					err := l.Confirm(ctx, 8)
					if !test.leads {
						wantErrorContains(t, err, "the shard cannot be led now")
						time.AfterFunc(testRetryPeriod/2, cancel)
					}
					return err
				}
				e.campaign(ctx, func(sent instant) *term {
					began = true
					cancel()
					return (&fence{}).open(sent, testOptions())
				})
				if began != test.leads {
					t.Errorf("a term has begun: %t", began)
				}
				if held := s.holder("test-shard-0") == "a"; held != test.leads {
					t.Errorf("the lease is held: %t", held)
				}
			})
		})
	}
}

// The loop of the member is stuck, so only the fence and the contexts can stop the work.
func TestH2_TermOfAShardEndsWithTheCertaintyOfTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		r := newFleetRig(t, s, runs, "a")
		contexts := make(chan contextOfShard, 100)
		wantNoError(t, r.Register("contexts", RunFunc(contextOfShards(contexts)), ScopeShard))
		r.start()
		eventually(t, maxFleetStart, func() bool { return runs.count() == 8 })
		plain, whole := newPlain(t, s, "plain")
		plain.start()
		work := <-contexts
		stuck := make(chan struct{})
		r.stuck.Store(&stuck)
		r.failFor(func(name string) bool { return name == "test" })
		time.Sleep((fleet.LeaseFactor - 1) * testLeaseDuration)
		wantNoError(t, r.write(work.ctx))
		eventually(t, 2*testLeaseDuration, whole.isRunning)
		wantErrorIs(t, r.write(work.ctx), ErrNotLeading)
		wantErrorIs(t, context.Cause(work.ctx), ErrLeaseLost)
		close(stuck)
		runs.check(t)
	})
}

// The planned leader is slow to acquire the Lease, and the standby must leave it to the planned leader.
func TestH6_StandbyLeavesAReleasedShardToThePlannedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		startFleet(t, s, runs, "a b")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b"))
		time.Sleep(30 * time.Second)
		n := len(runs.runs)
		c := newFleetRig(t, s, runs, "c")
		slow := func(ctx context.Context, verb, name string) error {
			if verb == verbUpdate && strings.HasPrefix(name, "test-shard-") && s.holder(name) == "" {
				time.Sleep(testRetryPeriod * 7 / 5)
			}
			return nil
		}
		c.client.before.Store(&slow)
		c.start()
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
		time.Sleep(30 * time.Second)
		if moved := runs.runs[n:]; len(moved) != runs.led()["c"] {
			t.Errorf("shards were started: %v, want each one that c leads once", moved)
		}
		runs.check(t)
	})
}

// A forged plan can move shards, but only to members that are ready to lead.
func TestH7_LeaderKeepsAShardUnlessThePlannedLeaderIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		startFleet(t, s, runs, "a b c")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
		time.Sleep(30 * time.Second)
		n := len(runs.runs)
		for range 50 { // the planner corrects the plan after each time
			forged := make(plan.Plan, 8)
			for i := range forged {
				forged[i] = plan.Assignment{Leader: "nobody", From: s.holder(leasename.Shard("test", i))}
			}
			text, err := forged.Encode()
			wantNoError(t, err)
			s.edit(leasename.Plan("test"), func(lease *coordinationv1.Lease) {
				lease.Annotations[fleet.PlanAnnotation] = text
			})
			time.Sleep(100 * time.Millisecond)
		}
		if moved := runs.runs[n:]; len(moved) > 0 {
			t.Errorf("shards were started: %v", moved)
		}
		runs.check(t)
	})
}

// The runnables of the shards take some time to return.
func TestLayout_ChangeWaitsForEachShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		old := startFleet(t, s, runs, "a b", shardOptions(4))
		eventually(t, time.Minute, isBalanced(runs, 4, "a", "b"))
		time.Sleep(30 * time.Second)
		for _, r := range old {
			r.linger.Store(int64(testShutdownTimeout - time.Second))
		}
		other := newFakeMember(s, "z", 8)
		defer other()
		for _, r := range old {
			s.edit(leasename.Member("test", r.options.Identity), func(lease *coordinationv1.Lease) {
				lease.Annotations[fleet.StateAnnotation] = fleet.State{Shards: 8}.Encode()
			})
		}
		eventually(t, time.Minute, func() bool { return strings.Contains(s.holder("test"), "changing") })
		for strings.Contains(s.holder("test"), "changing") {
			time.Sleep(10 * time.Millisecond)
		}
		for i := range 4 {
			if holder := s.holder(leasename.Shard("test", i)); holder != "" {
				t.Errorf("the layout was removed while shard %d was held by %s", i, holder)
			}
		}
		runs.check(t)
	})
}

// newFakeMember adds a member that does nothing. It returns a function that removes the member.
func newFakeMember(s *fakeLeases, identity string, shards int) (remove func()) {
	name := leasename.Member("test", identity)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setLocked(nil, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{leasename.Label: "test"},
			Annotations: map[string]string{fleet.StateAnnotation: fleet.State{Shards: shards}.Encode()},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &identity},
	})
	return func() { s.edit(name, nil) }
}
