package replica

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// leaders records the leaders that Options.OnNewLeader reports, without the UIDs of their identities.
type leaders struct {
	block time.Duration // how long a call takes

	mu       sync.Mutex // guards the fields below
	observed []string
	running  int
}

func (l *leaders) hook(t *testing.T) func(*Options) {
	return func(o *Options) {
		o.OnNewLeader = func(_ context.Context, identity string) {
			name, uid, _ := strings.Cut(identity, "_")
			if uid == "" {
				t.Errorf("the identity %q has no UID", identity)
			}
			l.begin(t, name)
			time.Sleep(l.block)
			l.end()
		}
	}
}

func (l *leaders) begin(t *testing.T, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running++; l.running > 1 {
		t.Error("two calls run at the same time")
	}
	l.observed = append(l.observed, name)
}

func (l *leaders) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
}

// want fails the test unless the leaders were observed.
func (l *leaders) want(t *testing.T, names string) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if got := strings.Join(l.observed, " "); got != names {
		t.Errorf("the leaders are %q, want %q", got, names)
	}
}

func TestOnNewLeader_IsCalledOnEachReplicaForEachLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		var observedByA, observedByB leaders
		a, b := newRig(t, s, "a", observedByA.hook(t)), newRig(t, s, "b", observedByB.hook(t))
		a.start()
		observedByA.want(t, "a")
		b.start()
		time.Sleep(time.Minute)
		observedByA.want(t, "a")
		observedByB.want(t, "a")
		s.setHolder("intruder_1")
		time.Sleep(testLeaseDuration)
		observedByA.want(t, "a intruder")
		observedByB.want(t, "a intruder")
		wantNoError(t, b.stop())
		s.release()
		time.Sleep(time.Minute)
		observedByA.want(t, "a intruder a")
		s.release() // no replica leads until a leads again
		time.Sleep(time.Minute)
		observedByA.want(t, "a intruder a a")
		wantNoError(t, a.stop())
		observedByA.want(t, "a intruder a a")
		observedByB.want(t, "a intruder")
	})
}

func TestOnNewLeader_IsCalledOnceWithoutLeaderElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var observed leaders
		a := newRig(t, &fakeServer{}, "a", withoutElection, observed.hook(t)).start()
		time.Sleep(time.Minute)
		observed.want(t, "a")
		wantNoError(t, a.stop())
	})
}

func TestOnNewLeader_ReplicaLeadsWhenItIsReported(t *testing.T) {
	for name, change := range map[string]func(*Options){"with election": func(*Options) {}, "without": withoutElection} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var a *rig
				leading := make(chan bool, 1)
				a = newRig(t, &fakeServer{}, "a", change, func(o *Options) {
					o.OnNewLeader = func(context.Context, string) { leading <- a.Status().Leading }
				})
				a.start()
				if !<-leading {
					t.Error("the replica was reported as the leader before it led")
				}
				wantNoError(t, a.stop())
			})
		})
	}
}

func TestOnNewLeader_IsNotCalledDuringAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		var observed leaders
		a := newRig(t, s, "a", observed.hook(t)).start()
		time.Sleep(time.Second)
		s.delete()
		eventually(t, maxReacquire, s.exists)
		time.Sleep(testLeaseDuration - time.Second)
		observed.want(t, "a")
		eventually(t, time.Second+maxAcquire, a.isLeading())
		observed.want(t, "a a")
		wantNoError(t, a.stop())
	})
}

// While a call runs, the lease is renewed and the leader-gated runnables run.
func TestOnNewLeader_SlowCallDelaysOnlyLaterCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		observed, work := &leaders{block: time.Minute}, &worker{}
		a := newRig(t, s, "a", observed.hook(t))
		a.register("work", work)
		a.start()
		time.Sleep(10 * time.Second)
		wantStarts(t, work, 1, 1)
		for _, holder := range []string{"x_1", "y_1", "z_1"} {
			s.setHolder(holder)
			time.Sleep(2 * time.Second) // the elector observes the holder
		}
		observed.want(t, "a")
		time.Sleep(time.Minute)
		observed.want(t, "a a") // a leads again; x, y and z were replaced before they were reported
		wantStarts(t, work, 2, 1)
		time.Sleep(time.Minute)
		wantNoError(t, a.stop())
	})
}

func TestOnNewLeader_RunWaitsForTheCall(t *testing.T) {
	for name, test := range map[string]struct {
		block time.Duration
		want  string // in the error
	}{
		"returns in time": {block: testShutdownTimeout - time.Second},
		"hangs":           {block: time.Hour, want: "Options.OnNewLeader"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{}
				observed := &leaders{block: test.block}
				a := newRig(t, s, "a", observed.hook(t)).start()
				synctest.Wait()
				began := time.Now()
				err := a.stop()
				if test.want == "" {
					wantNoError(t, err)
				} else {
					wantErrorContains(t, err, test.want, "not returned in time")
				}
				if took := time.Since(began); took != min(test.block, testShutdownTimeout) {
					t.Errorf("Run returned after %s, want %s", took, min(test.block, testShutdownTimeout))
				}
				wantReleased(t, s)
				time.Sleep(time.Hour) // until the call that hangs has returned
			})
		})
	}
}

func TestOnNewLeader_ContextEndsWithRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &fakeServer{}, "a", func(o *Options) {
			o.OnNewLeader = func(ctx context.Context, _ string) { <-ctx.Done() }
		}).start()
		time.Sleep(time.Minute)
		began := time.Now()
		wantNoError(t, a.stop())
		if took := time.Since(began); took > 0 {
			t.Errorf("Run returned after %s, want at once", took)
		}
	})
}

func TestOnNewLeader_PanicEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a := newRig(t, s, "a", func(o *Options) { o.OnNewLeader = func(context.Context, string) { panic("oh") } })
		wantErrorContains(t, a.start().result(), "Options.OnNewLeader", "oh")
		wantReleased(t, s)
	})
}
