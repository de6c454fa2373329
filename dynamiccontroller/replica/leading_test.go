package replica

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestL1_ShutdownRenewsTheLeaseUntilAllRunnablesHaveReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a, b := newRig(t, s, "a", func(o *Options) { o.ShutdownTimeout = time.Minute }), newRig(t, s, "b")
		slow, next, perReplica := &worker{linger: 20 * time.Second}, &worker{}, &worker{}
		a.register("slow", slow)
		a.registerPerReplica("per-replica", perReplica)
		b.register("next", next)
		a.start()
		time.Sleep(time.Second)
		b.start()
		time.Sleep(5 * time.Second)
		a.cancel()
		synctest.Wait()
		for range 19 {
			time.Sleep(time.Second)
			wantStarts(t, slow, 1, 1)
			wantStarts(t, next, 0, 0)
			wantStarts(t, perReplica, 1, 1) // stopped after the leader-gated runnables
			if age := time.Since(s.lease().RenewTime.Time); age > time.Second {
				t.Fatalf("the lease was last renewed %s ago, want at most a second", age)
			}
			wantNoError(t, a.write(t.Context())) // the fence is open
		}
		wantNoError(t, a.result())
		eventually(t, maxAcquire, next.isRunning)
		wantStarts(t, perReplica, 1, 0)
		wantErrorIs(t, a.write(t.Context()), ErrNotLeading)
		wantErrorIs(t, slow.exitCause(), context.Canceled)
		if errors.Is(slow.exitCause(), ErrLeaseLost) {
			t.Errorf("the context was cancelled with %v, want a cause other than ErrLeaseLost", slow.exitCause())
		}
		wantNoError(t, b.stop())
	})
}

func TestL1_ShutdownDoesNotReleaseTheLeaseOfAnotherReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a := newRig(t, s, "a")
		var returned atomic.Bool
		a.registerFunc("work", func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(testRetryPeriod)
			returned.Store(true)
			return nil
		})
		a.start()
		time.Sleep(1100 * time.Millisecond)
		// Renewals hang until the runnable has returned, so that none of them observes the new holder.
		a.lease.intercept(func(ctx context.Context, verb string, send func() error) error {
			if verb == verbUpdate && !returned.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			return send()
		})
		s.setHolder("other")
		wantNoError(t, a.stop())
		wantHolder(t, s, "other")
		a.wantLog(1, "Lease not released because this replica does not hold it")
	})
}

func TestL1_LostResponseToARenewalDoesNotPreventTheRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a := newRig(t, s, "a").start()
		time.Sleep(time.Second)
		lost := 0 // number of lost responses to renewals and to the first release
		a.lease.intercept(func(_ context.Context, verb string, send func() error) error {
			err := send()
			if verb == verbUpdate && lost < 3 {
				lost++
				return errors.New("the response was lost")
			}
			return err
		})
		wantNoError(t, a.stop())
		wantReleased(t, s)
	})
}

func TestL1_RunnablesThatDoNotReturnKeepTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a, b, next := newRig(t, s, "a"), newRig(t, s, "b"), &worker{}
		a.register("hung", &worker{linger: time.Minute})
		a.register("clean", &worker{})
		b.register("next", next)
		a.start()
		time.Sleep(time.Second)
		b.start()
		time.Sleep(time.Second)
		began := time.Now()
		err := a.stop()
		wantErrorContains(t, err, "hung", "5s", "expire")
		if strings.Contains(err.Error(), "clean") {
			t.Error(err)
		}
		if took := time.Since(began); took != testShutdownTimeout {
			t.Errorf("Run returned after %s", took)
		}
		wantErrorIs(t, a.write(t.Context()), ErrNotLeading)
		wantErrorIs(t, a.write(t.Context()), ErrLeaseLost)
		wantHolder(t, s, "a")
		wantStarts(t, next, 0, 0)
		time.Sleep(2 * time.Second)
		wantStarts(t, next, 0, 0)
		eventually(t, maxTakeover-2*time.Second, next.isRunning)
		wantNoError(t, b.stop())
		time.Sleep(time.Minute) // wait until the hung runnable has returned
	})
}

func TestL1_ExitErrorKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a := newRig(t, s, "a")
		a.registerFunc("unclean", func(ctx context.Context) error {
			<-ctx.Done()
			return errors.New("a handler is still running")
		})
		a.start()
		time.Sleep(time.Second)
		wantErrorContains(t, a.stop(), "unclean", "a handler is still running")
		wantHolder(t, s, "a")
	})
}

func TestL1_FirstRequestAfterALeaseChangeEndsTheTerm(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(s *fakeServer)
		want    string        // in the cause
		blocked time.Duration // the shortest time until the replica leads again
	}{
		"taken by force":    {func(s *fakeServer) { s.setHolder("intruder") }, "held by intruder", testLeaseDuration},
		"emptied":           {func(s *fakeServer) { s.setHolder("") }, "emptied", testLeaseDuration},
		"deleted":           {(*fakeServer).delete, "deleted", testLeaseDuration},
		"released by force": {(*fakeServer).release, "emptied", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{}
				a, work, perReplica := newRig(t, s, "a"), &worker{}, &worker{}
				a.register("work", work)
				a.registerPerReplica("per-replica", perReplica)
				a.start()
				time.Sleep(1100 * time.Millisecond)
				wantStarts(t, work, 1, 1)
				test.change(s)
				changed := time.Now()
				eventually(t, testRetryPeriod, func() bool { return work.exitCause() != nil })
				wantErrorIs(t, work.exitCause(), ErrLeaseLost)
				wantErrorContains(t, work.exitCause(), test.want)
				wantErrorIs(t, a.write(t.Context()), ErrNotLeading)
				eventually(t, test.blocked+maxReacquire, work.isRunning)
				if after := time.Since(changed); after < test.blocked {
					t.Errorf("the replica leads again after %s, want at least %s", after, test.blocked)
				}
				wantStarts(t, work, 2, 1)
				wantStarts(t, perReplica, 1, 1)
				wantNoError(t, a.stop())
			})
		})
	}
}

func TestL1_CandidateWaitsForAPossibleLeader(t *testing.T) {
	setDuration := func(seconds int) func(*fakeServer) {
		return func(s *fakeServer) {
			s.edit(func(r *record) *record { r.LeaseDurationSeconds = seconds; return r })
		}
	}
	for name, change := range map[string]func(s *fakeServer){
		"lease deleted":           (*fakeServer).delete,
		"lease emptied":           func(s *fakeServer) { s.setHolder("") },
		"duration set to 1 s":     setDuration(1),
		"duration set to nothing": setDuration(0),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{}
				a, b, work, next := newRig(t, s, "a"), newRig(t, s, "b"), &worker{}, &worker{}
				a.register("work", work)
				b.register("next", next)
				a.start()
				time.Sleep(time.Second)
				b.start()
				time.Sleep(1300 * time.Millisecond)
				// The leader has just renewed, and cannot observe the change.
				a.lease.disconnect()
				change(s)
				eventually(t, time.Minute, next.isRunning)
				if work.isRunning() || a.write(t.Context()) == nil {
					t.Error("two replicas lead at the same time")
				}
				wantNoError(t, b.stop())
				a.crash()
			})
		})
	}
}

// A Lease stores microseconds. client-go's elector compares records in JSON, which stores seconds.
func TestL1_CandidateObservesTwoRenewalsWithinOneSecond(t *testing.T) {
	const last = 400 * time.Millisecond
	for range 20 { // the candidate's requests have jitter
		synctest.Test(t, func(t *testing.T) {
			s := &fakeServer{}
			began := time.Now().Truncate(time.Second) // a bubble begins at a whole second
			renewed := func(at time.Duration) *record {
				return &record{HolderIdentity: "other", LeaseDurationSeconds: 3, RenewTime: metav1.NewTime(began.Add(at))}
			}
			s.set(renewed(0))
			b, next := newRig(t, s, "b"), &worker{}
			b.register("next", next)
			b.start()
			time.Sleep(last)
			s.set(renewed(last))
			time.Sleep(testLeaseDuration)
			synctest.Wait()
			wantStarts(t, next, 0, 0)
			wantNoError(t, b.stop())
		})
	}
}

func TestL1_FirstProcessLeadsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, work := newRig(t, &fakeServer{}, "a"), &worker{}
		a.register("work", work)
		a.start()
		synctest.Wait()
		wantStarts(t, work, 1, 1)
		wantNoError(t, a.stop())
	})
}

func TestL1_ShutdownReleasesALeaseAcquiredWithoutAResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a, work := newRig(t, s, "a"), &worker{}
		a.register("work", work)
		a.lease.intercept(func(ctx context.Context, verb string, send func() error) error {
			err := send()
			if verb == verbCreate {
				<-ctx.Done()
				return ctx.Err()
			}
			return err
		})
		a.start()
		synctest.Wait()
		wantNoError(t, a.stop())
		wantStarts(t, work, 0, 0)
		wantHolder(t, s, "")
	})
}

// The elector acquires the lease while Run stops it, so that no runnable is started.
func TestL1_ShutdownEndsATermThatHasJustBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a, work := newRig(t, s, "a"), &worker{}
		a.register("work", work)
		a.lease.intercept(func(ctx context.Context, verb string, send func() error) error {
			err := send()
			if verb == verbCreate {
				a.cancel()
				<-ctx.Done()
			}
			return err
		})
		wantNoError(t, a.start().result())
		wantStarts(t, work, 0, 0)
		wantReleased(t, s)
		wantErrorIs(t, a.write(t.Context()), ErrNotLeading)
		if got := a.Status(); got.Leading || got.Term != 1 {
			t.Errorf("status %+v", got)
		}
	})
}

func TestL3_PerReplicaRunnablesStartOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a, work, perReplica := newRig(t, s, "a"), &worker{}, &worker{}
		a.register("work", work)
		a.registerPerReplica("per-replica", perReplica)
		a.start()
		for i := range 20 {
			time.Sleep(10 * time.Second)
			wantStarts(t, work, i+1, 1)
			wantStarts(t, perReplica, 1, 1)
			s.delete()
		}
		time.Sleep(10 * time.Second)
		wantNoError(t, a.stop())
		wantStarts(t, perReplica, 1, 0)
		for i, n := range work.terms {
			if n != int64(i+1) {
				t.Fatalf("the terms are %v", work.terms)
			}
		}
	})
}
