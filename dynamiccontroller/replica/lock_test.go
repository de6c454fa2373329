package replica

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func until(t *testing.T, within time.Duration, done func() bool) time.Duration {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		if done() {
			return time.Since(began)
		}
		if time.Since(began) > within {
			t.Fatalf("not within %s", within)
		}
	}
}

func TestL1_AnEmptiedLeaseBlocksForAsLongAsIsConfiguredWhateverItSays(t *testing.T) {
	for name, seconds := range map[string]int{"huge": 1_000_000, "none": 0, "a little more": 10} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				a := newRig(t, s, "a").start()
				time.Sleep(time.Second)
				s.edit(func(r *record) *record {
					r.HolderIdentity, r.LeaseDurationSeconds = "", seconds
					return r
				})
				until(t, time.Second, func() bool { return !a.Status().Leading })
				took := until(t, 8*time.Second, func() bool { return a.Status().Leading })
				if took < 2*time.Second {
					t.Errorf("it leads again after %s", took)
				}
				wantNoError(t, a.stop())
			})
		})
	}
}

func TestL1_ANamedHolderMayAskForALongerLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		s.set(&record{HolderIdentity: "other", LeaseDurationSeconds: 60})
		a := newRig(t, s, "a").start()
		time.Sleep(60 * time.Second)
		if a.Status().Leading {
			t.Error("it leads within the time that the lease asks for")
		}
		until(t, 3*time.Second, func() bool { return a.Status().Leading })
		wantNoError(t, a.stop())
	})
}

// A claim keeps others from leading while whoever held the lease may not have noticed: its claimant's end changes
// nothing in that.
func TestL1_AClaimantThatEndsDoesNotReleaseItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a, b, c, w, next := newRig(t, s, "a"), newRig(t, s, "b"), newRig(t, s, "c"), &worker{}, &worker{}
		wantNoError(t, a.Register("w", w))
		wantNoError(t, c.Register("next", next))
		a.start()
		time.Sleep(time.Second)
		b.start()
		c.start()
		time.Sleep(time.Second)
		// The leader hears nothing more, the lease is deleted, and b claims it: what it sends last takes effect, and it is
		// told to end before the answer.
		a.lease.fail()
		c.lease.fail()
		b.lease.set(func(ctx context.Context, verb string, do func() error) error {
			err := do()
			if verb == "update" {
				<-ctx.Done()
				return ctx.Err()
			}
			return err
		})
		s.delete()
		until(t, 2*time.Second, func() bool { return strings.HasPrefix(s.now().HolderIdentity, "b_") })
		time.Sleep(500 * time.Millisecond)
		wantNoError(t, b.stop())
		c.lease.heal()
		time.Sleep(100 * time.Millisecond)
		if h := s.now().HolderIdentity; !strings.HasPrefix(h, "b_") {
			t.Errorf("the lease is held by %q", h)
		}
		until(t, 10*time.Second, func() bool {
			_, running := next.counts()
			return running == 1
		})
		if w.ended() == nil {
			t.Error("two lead")
		}
		wantNoError(t, c.stop())
		a.crash()
	})
}

func TestStatusNamesNoLeaderWhereThereIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a := newRig(t, s, "a").start()
		time.Sleep(time.Second)
		b := newRig(t, s, "b").start()
		time.Sleep(time.Second)
		if got := b.Status().Leader; got != a.Status().Identity {
			t.Errorf("the leader is %q", got)
		}
		a.crash()
		b.lease.set(func(_ context.Context, verb string, do func() error) error {
			if verb == "create" {
				return errors.New("no")
			}
			return do()
		})
		s.delete()
		until(t, 2*time.Second, func() bool { return b.Status().Leader == "" })
		if b.log.count("nobody leads") != 1 {
			t.Errorf("the log says\n%s", b.log)
		}
		b.lease.heal()
		until(t, 2*time.Second, func() bool { return strings.HasPrefix(s.now().HolderIdentity, "b_") })
		claimed := time.Now()
		for i := 1; !b.Status().Leading; i++ { // it only claims
			if got := b.Status().Leader; got != "" {
				t.Fatalf("the leader is %q", got)
			}
			if n := b.log.count("there is a new leader"); n != 1 {
				t.Fatalf("the log says %d times that there is a new leader", n)
			}
			if i%700 == 0 {
				s.edit(func(r *record) *record { return r }) // the next renewal conflicts, and the lease is read
			}
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(claimed); took < 2900*time.Millisecond {
			t.Errorf("it leads %s after its claim", took)
		}
		synctest.Wait()
		if got := b.Status(); got.Leader != got.Identity || b.log.count("there is a new leader") != 2 {
			t.Errorf("status %+v, and the log says\n%s", got, b.log)
		}
		wantNoError(t, b.stop())
	})
}

func TestTheLogSaysOnceThatTheLeaseCannotBeReachedAndOnceThatItCan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &server{}, "a")
		a.lease.fail()
		a.start()
		for i := range 2 {
			time.Sleep(time.Hour)
			if n := a.log.count("a request for the lease failed"); n != i+1 || a.log.count("connection refused") < n {
				t.Errorf("the log says %d times that it fails:\n%s", n, a.log)
			}
			a.lease.heal()
			time.Sleep(time.Minute)
			if n := a.log.count("answered again"); n != i+1 {
				t.Errorf("the log says %d times that it does not:\n%s", n, a.log)
			}
			a.lease.fail()
		}
		a.crash()
	})
}

func TestTheLogNamesTheRightThatIsMissing(t *testing.T) {
	for _, verb := range []string{"get", "create", "update"} {
		for reason, err := range map[string]error{
			"forbidden":    apierrors.NewForbidden(leases, "test", errors.New("no")),
			"Unauthorized": apierrors.NewUnauthorized("no"),
		} {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				if verb == "update" {
					s.set(&record{HolderIdentity: "other", LeaseDurationSeconds: 3})
				}
				a := newRig(t, s, "a")
				a.lease.set(func(_ context.Context, v string, do func() error) error {
					if v == verb {
						return err
					}
					return do()
				})
				a.start()
				time.Sleep(time.Minute)
				line := `"msg"="Permission missing, this replica cannot lead"`
				if n := a.log.count(line); n != 1 {
					t.Errorf("%s, %s: the log says it %d times:\n%s", verb, reason, n, a.log)
				}
				for _, word := range []string{`"error"="`, `"verb"="` + verb + `"`, `"resource"="leases.coordination.k8s.io"`, `"lease"="default/test"`} {
					if !strings.Contains(a.log.String(), word) {
						t.Errorf("%s, %s: the log does not say %s:\n%s", verb, reason, word, a.log)
					}
				}
				a.lease.heal()
				time.Sleep(10 * time.Second)
				if !a.Status().Leading || a.log.count("Permission granted") != 1 {
					t.Errorf("%s, %s: status %+v, and the log says\n%s", verb, reason, a.Status(), a.log)
				}
				wantNoError(t, a.stop())
			})
		}
	}
}

func TestL2_TheCauseOfALossSaysWhatCameOfTheLastRequest(t *testing.T) {
	for name, d := range map[string]time.Duration{"the elector gives up": 0, "the clock is first": 900 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, w := newRig(t, &server{}, "a"), &worker{}
				wantNoError(t, a.Register("w", w))
				a.start()
				a.lease.set(func(_ context.Context, _ string, do func() error) error {
					err := do()
					time.Sleep(d)
					return err
				})
				time.Sleep(4 * time.Second)
				a.lease.fail()
				until(t, 4*time.Second, func() bool { return w.ended() != nil })
				wantIs(t, w.ended(), ErrLeaseLost)
				wantSays(t, w.ended(), "last request", "connection refused")
				a.crash()
			})
		})
	}
}
