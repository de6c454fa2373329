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
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

type record = resourcelock.LeaderElectionRecord

func TestL1_ACleanEndRenewsUntilTheLastHasReturnedAndThenReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a, b := newRig(t, s, "a", func(o *Options) { o.ShutdownTimeout = time.Minute }), newRig(t, s, "b")
		slow, next, every := &worker{linger: 20 * time.Second}, &worker{}, &worker{}
		wantNoError(t, a.Register("slow", slow))
		wantNoError(t, a.RegisterWithoutLeaderElection("every", every))
		wantNoError(t, b.Register("next", next))
		a.start()
		time.Sleep(time.Second)
		b.start()
		time.Sleep(5 * time.Second)
		a.cancel()
		synctest.Wait()
		for range 19 {
			time.Sleep(time.Second)
			wantLives(t, slow, 1, 1)
			wantLives(t, next, 0, 0)
			wantLives(t, every, 1, 1) // it ends after the leading half
			if age := time.Since(s.now().RenewTime.Time); age > time.Second {
				t.Fatalf("renewed %s ago", age)
			}
			wantNoError(t, a.write(t.Context())) // what runs may still write
		}
		time.Sleep(time.Second + 1100*time.Millisecond)
		wantNoError(t, a.result())
		wantLives(t, next, 1, 1)
		wantLives(t, every, 1, 0)
		wantIs(t, a.write(t.Context()), ErrNotLeading)
		if errors.Is(slow.lastCause(), ErrLeaseLost) || !errors.Is(slow.lastCause(), context.Canceled) {
			t.Errorf("the context ended with %v", slow.lastCause())
		}
		wantNoError(t, b.stop())
	})
}

func TestL1_OnlyALeaseThatNamesUsIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a := newRig(t, s, "a")
		var returned atomic.Bool
		a.lead("w", func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(500 * time.Millisecond)
			returned.Store(true)
			return nil
		})
		a.start()
		time.Sleep(1100 * time.Millisecond)
		// No renewal sees it: they hang until the runnable has returned.
		a.lease.set(func(ctx context.Context, verb string, do func() error) error {
			if verb == "update" && !returned.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			return do()
		})
		s.give("someone")
		wantNoError(t, a.stop())
		if got := s.now().HolderIdentity; got != "someone" {
			t.Errorf("the lease is held by %q", got)
		}
		if a.log.count("the lease is not released") != 1 {
			t.Errorf("the log says\n%s", a.log)
		}
	})
}

func TestL1_ARenewalThatLandsLateDoesNotUndoARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a := newRig(t, s, "a").start()
		time.Sleep(time.Second)
		// Answers are lost from now on; the requests take effect. The release's own too: it is tried again.
		lost := 0
		a.lease.set(func(_ context.Context, verb string, do func() error) error {
			err := do()
			if verb == "update" && lost < 3 {
				lost++
				return errors.New("the answer was lost")
			}
			return err
		})
		wantNoError(t, a.stop())
		if got := s.now(); got.HolderIdentity != "" || !released(&got) {
			t.Errorf("the lease is %+v", got)
		}
	})
}

func TestL1_RunnablesThatHangKeepTheLeaseFromBeingReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a, b, next := newRig(t, s, "a"), newRig(t, s, "b"), &worker{}
		deaf := &worker{linger: time.Minute}
		wantNoError(t, a.Register("deaf", deaf))
		wantNoError(t, a.Register("good", &worker{}))
		wantNoError(t, b.Register("next", next))
		a.start()
		time.Sleep(time.Second)
		b.start()
		time.Sleep(time.Second)
		began := time.Now()
		err := a.stop()
		wantSays(t, err, "deaf", "5s", "expire")
		if strings.Contains(err.Error(), "good") {
			t.Error(err)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("it took %s", took)
		}
		wantIs(t, a.write(t.Context()), ErrNotLeading)
		wantIs(t, a.write(t.Context()), ErrLeaseLost)
		if got := s.now().HolderIdentity; !strings.HasPrefix(got, "a_") {
			t.Errorf("the lease is held by %q", got)
		}
		wantLives(t, next, 0, 0)
		time.Sleep(2 * time.Second)
		wantLives(t, next, 0, 0)
		time.Sleep(4 * time.Second)
		wantLives(t, next, 1, 1)
		wantNoError(t, b.stop())
		time.Sleep(time.Minute) // let the deaf one return
	})
}

func TestL1_ARunnableThatEndsWithAnErrorKeepsTheLeaseFromBeingReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a := newRig(t, s, "a")
		a.lead("messy", func(ctx context.Context) error {
			<-ctx.Done()
			return errors.New("a handler still runs")
		})
		a.start()
		time.Sleep(time.Second)
		wantSays(t, a.stop(), "messy", "a handler still runs")
		if got := s.now().HolderIdentity; !strings.HasPrefix(got, "a_") {
			t.Errorf("the lease is held by %q", got)
		}
	})
}

// At the first sight: whichever request comes first after the change, and no later.
func TestL1_WhatOthersDoToTheLeaseEndsTheTermAtTheFirstSight(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(s *server)
		says string
		wait time.Duration // until it may lead again, at least
	}{
		"taken by force": {func(s *server) { s.give("thief") }, "held by thief", 3 * time.Second},
		"emptied":        {func(s *server) { s.give("") }, "emptied", 3 * time.Second},
		"deleted":        {(*server).delete, "deleted", 3 * time.Second},
		"released by force": {func(s *server) {
			s.edit(func(*record) *record { return &record{LeaseDurationSeconds: 1} })
		}, "emptied", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				a, w, every := newRig(t, s, "a"), &worker{}, &worker{}
				wantNoError(t, a.Register("w", w))
				wantNoError(t, a.RegisterWithoutLeaderElection("every", every))
				a.start()
				time.Sleep(1100 * time.Millisecond)
				wantLives(t, w, 1, 1)
				c.do(s)
				changed := time.Now()
				time.Sleep(500 * time.Millisecond) // RetryPeriod
				synctest.Wait()
				if w.lastCause() == nil {
					t.Fatal("the term goes on")
				}
				wantIs(t, w.lastCause(), ErrLeaseLost)
				wantSays(t, w.lastCause(), c.says)
				wantIs(t, a.write(t.Context()), ErrNotLeading)
				for {
					if lives, _ := w.counts(); lives == 2 {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				if again := time.Since(changed); again < c.wait || again > c.wait+2*time.Second {
					t.Errorf("it leads again after %s", again)
				}
				wantLives(t, every, 1, 1)
				wantNoError(t, a.stop())
			})
		})
	}
}

func TestL1_ACandidateWaitsForWhoMayStillLead(t *testing.T) {
	for name, do := range map[string]func(s *server){
		"deleted": (*server).delete,
		"emptied": func(s *server) { s.give("") },
		"duration edited down": func(s *server) {
			s.edit(func(r *record) *record { r.LeaseDurationSeconds = 1; return r })
		},
		"duration edited to nothing": func(s *server) {
			s.edit(func(r *record) *record { r.LeaseDurationSeconds = 0; return r })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				a, b, w, next := newRig(t, s, "a"), newRig(t, s, "b"), &worker{}, &worker{}
				wantNoError(t, a.Register("w", w))
				wantNoError(t, b.Register("next", next))
				a.start()
				time.Sleep(time.Second)
				b.start()
				time.Sleep(time.Second)
				// The leader renews once more, cannot reach the API server from then on, and someone meddles with the lease.
				time.Sleep(300 * time.Millisecond)
				a.lease.fail()
				do(s)
				for {
					if lives, _ := next.counts(); lives == 1 {
						break
					}
					time.Sleep(time.Millisecond)
				}
				if _, running := w.counts(); running > 0 || a.write(t.Context()) == nil {
					t.Error("two lead")
				}
				wantNoError(t, b.stop())
				a.crash()
			})
		})
	}
}

// A Lease has microseconds, and the JSON by which client-go's elector tells two records apart has seconds.
func TestL1_ACandidateCountsFromTheLastRenewalOfASecond(t *testing.T) {
	const last = 400 * time.Millisecond
	for range 20 { // the candidate's looks are jittered
		synctest.Test(t, func(t *testing.T) {
			s := &server{}
			began := time.Now().Truncate(time.Second) // a whole second, as all bubbles begin
			renewed := func(at time.Duration) *record {
				return &record{HolderIdentity: "other", LeaseDurationSeconds: 3, RenewTime: metav1.NewTime(began.Add(at))}
			}
			s.set(renewed(0))
			b, next := newRig(t, s, "b"), &worker{}
			wantNoError(t, b.Register("next", next))
			b.start()
			time.Sleep(last)
			s.edit(func(*record) *record { return renewed(last) })
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if lives, _ := next.counts(); lives > 0 {
				t.Error("it leads within LeaseDuration of the last renewal")
			}
			wantNoError(t, b.stop())
		})
	}
}

func TestL1_AFreshProcessDoesNotWaitForALeaseThatNeverWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w := newRig(t, &server{}, "a"), &worker{}
		wantNoError(t, a.Register("w", w))
		a.start()
		synctest.Wait()
		wantLives(t, w, 1, 1)
		wantNoError(t, a.stop())
	})
}

func TestL1_ACandidateThatWinsAsItEndsGivesTheLeaseBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a, w := newRig(t, s, "a"), &worker{}
		wantNoError(t, a.Register("w", w))
		a.lease.set(func(ctx context.Context, verb string, do func() error) error {
			err := do()
			if verb == "create" { // it took effect, and the answer does not come
				<-ctx.Done()
				return ctx.Err()
			}
			return err
		})
		a.start()
		synctest.Wait()
		wantNoError(t, a.stop())
		wantLives(t, w, 0, 0)
		if got := s.now().HolderIdentity; got != "" {
			t.Errorf("the lease is held by %q", got)
		}
	})
}

func TestL3_TheOtherHalfStartsOnceWhateverHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a, w, every := newRig(t, s, "a"), &worker{}, &worker{}
		wantNoError(t, a.Register("w", w))
		wantNoError(t, a.RegisterWithoutLeaderElection("every", every))
		a.start()
		for i := range 20 {
			time.Sleep(10 * time.Second)
			wantLives(t, w, i+1, 1)
			wantLives(t, every, 1, 1)
			s.delete()
		}
		time.Sleep(10 * time.Second)
		wantNoError(t, a.stop())
		wantLives(t, every, 1, 0)
		for i, n := range w.terms {
			if n != int64(i+1) {
				t.Fatalf("terms %v", w.terms)
			}
		}
	})
}
