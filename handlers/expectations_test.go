package handlers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

// expectationsTest contains a server, a cache that lags behind it, and Expectations that use both.
type expectationsTest struct {
	*testing.T
	*Expectations
	server *controllertest.Server
	cache  fakeserver.Cache
}

func newExpectations(t *testing.T, timeout time.Duration) *expectationsTest {
	t.Helper()
	server, cache := newFakeServer(), fakeserver.Cache{}
	e, err := NewExpectations(ExpectationsConfig{Client: server, Cache: cache, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	return &expectationsTest{T: t, Expectations: e, server: server, cache: cache}
}

func newUnnamed() *unstructured.Unstructured {
	child := fakeserver.NewConfigMap("", "x")
	child.SetNamespace("default")
	child.SetGenerateName("child-")
	return child
}

// mustCreate creates a child for the first widget.
func (e *expectationsTest) mustCreate() *unstructured.Unstructured {
	e.Helper()
	child, err := e.Create(e.Context(), first, configMaps, newUnnamed())
	if err != nil {
		e.Fatal(err)
	}
	return child
}

// mustShow adds a child to the cache, which meets the expectation of its creation.
func (e *expectationsTest) mustShow(child *unstructured.Unstructured) {
	e.Helper()
	e.cache[child.GetName()] = child
	e.wantWaiting(e.Context(), false)
}

// fail makes all requests with the given verb return err.
func (e *expectationsTest) fail(verb string, err error) {
	e.server.PrependReactor(verb, "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

// loseFirstCreate makes the first create fail without a response.
func (e *expectationsTest) loseFirstCreate() {
	lost := false
	e.server.PrependReactor("create", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		if lost {
			return false, nil, nil
		}
		lost = true
		return true, nil, errors.New("lost")
	})
}

func (e *expectationsTest) configMaps() dynamic.ResourceInterface {
	return e.server.Resource(configMaps).Namespace("default")
}

// wantWaiting calls Await for the first widget and checks whether it is waiting.
func (e *expectationsTest) wantWaiting(ctx context.Context, want bool) {
	e.Helper()
	err := e.Await(ctx, first)
	if err != nil && !strings.HasPrefix(err.Error(), "requeue after") {
		e.Fatal(err)
	}
	if (err != nil) != want {
		e.Fatalf("Await returned %v", err)
	}
}

// state returns the state that is used outside of runs.
func (e *expectationsTest) state() *expectedChildren { return e.runs.For(e.Context()) }

func TestExpectations_AwaitWritesUntilCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newExpectations(t, 0)
		e.wantWaiting(t.Context(), false)
		child := e.mustCreate()
		if name := child.GetName(); !strings.HasPrefix(name, "child-") || len(name) != len("child-")+suffixLength {
			t.Errorf("the child is named %s", name)
		}
		e.wantWaiting(t.Context(), true)
		e.mustShow(child)

		if err := e.Delete(t.Context(), first, configMaps, child); err != nil {
			t.Fatal(err)
		}
		e.wantWaiting(t.Context(), true)
		delete(e.cache, child.GetName())
		e.wantWaiting(t.Context(), false)
		if owners := e.state().owners; len(owners) != 0 {
			t.Errorf("still expected: %v", owners)
		}
	})
}

func TestExpectations_ConvertValuesWrittenInGo(t *testing.T) {
	e := newExpectations(t, time.Minute)
	child := newUnnamed()
	child.Object["spec"] = map[string]any{"n": 3, "labels": map[string]string{"a": "b"}}
	created, err := e.Create(t.Context(), first, configMaps, child)
	if err != nil {
		t.Fatal(err)
	}
	if n, _, _ := unstructured.NestedInt64(created.Object, "spec", "n"); n != 3 {
		t.Errorf("created %v", created.Object)
	}
	child.Object["spec"] = map[string]any{"list": []any{func() {}}}
	_, err = e.Create(t.Context(), first, configMaps, child)
	if err == nil || !strings.Contains(err.Error(), "spec.list[0]") {
		t.Errorf("got %v, want an error with the path", err)
	}
}

func TestExpectations_DeletionTimestampMeetsDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newExpectations(t, 0)
		child := e.mustCreate()
		e.mustShow(child)
		if err := e.Delete(t.Context(), first, configMaps, child); err != nil {
			t.Fatal(err)
		}
		e.wantWaiting(t.Context(), true)
		deleting := child.DeepCopy()
		now := metav1.Now()
		deleting.SetDeletionTimestamp(&now)
		e.cache[child.GetName()] = deleting
		e.wantWaiting(t.Context(), false)
	})
}

// If the response to a create is lost, the child may exist. If the create is rejected, the child does not exist.
func TestExpectations_OnlyRejectedCreatesAreNotExpected(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"forbidden":      {apierrors.NewForbidden(configMaps.GroupResource(), "x", errors.New("no")), false},
		"already exists": {apierrors.NewAlreadyExists(configMaps.GroupResource(), "x"), false},
		"lost response":  {errors.New("connection reset"), true},
		"timeout":        {apierrors.NewTimeoutError("x", 1), true},
		"server error":   {apierrors.NewInternalError(errors.New("x")), true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newExpectations(t, time.Minute)
				e.fail("create", c.err)
				if _, err := e.Create(t.Context(), first, configMaps, newUnnamed()); !errors.Is(err, c.err) {
					t.Errorf("got %v", err)
				}
				e.wantWaiting(t.Context(), c.want)
				time.Sleep(59 * time.Second)
				if err := e.Await(t.Context(), first); c.want != errors.Is(err, c.err) {
					t.Errorf("Await, which sends the create again, returned %v", err)
				}
				e.wantWaiting(t.Context(), c.want)
				time.Sleep(time.Second)
				e.wantWaiting(t.Context(), false)
			})
		})
	}
}

// A child that is created and deleted between two reads of the cache never appears in the cache.
func TestExpectations_MissingChildIsReadLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newExpectations(t, 0)
		child := e.mustCreate()
		for range 35 {
			time.Sleep(time.Second)
			e.wantWaiting(t.Context(), true)
		}
		gets := 0
		for _, action := range e.server.Actions() {
			if action.GetVerb() == "get" {
				gets++
			}
		}
		if gets != 3 {
			t.Errorf("sent %d get requests in 35 seconds, want 3", gets)
		}
		if err := e.configMaps().Delete(t.Context(), child.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(confirmInterval)
		e.wantWaiting(t.Context(), false)
	})
}

func TestExpectations_DroppedByForgetAndTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newExpectations(t, time.Minute)
		for _, owner := range []string{"default/a", "default/b"} {
			id := identifiers{GVR: widgets, NamespacedKey: owner}
			if _, err := e.Create(t.Context(), id, configMaps, newUnnamed()); err != nil {
				t.Fatal(err)
			}
		}
		e.Forget(identifiers{GVR: widgets, NamespacedKey: "default/b"})
		if owners := e.state().owners; len(owners) != 1 {
			t.Errorf("expected after Forget: %v", owners)
		}
		time.Sleep(time.Minute)
		e.mustCreate()
		if owners := e.state().owners; len(owners) != 1 || len(owners[first]) != 1 {
			t.Errorf("expected after the timeout: %v", owners)
		}
	})
}

func TestExpectations_AreSafeForConcurrentUse(t *testing.T) {
	server := newFakeServer()
	e, err := NewExpectations(ExpectationsConfig{Client: server, Cache: Live(server)})
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for i := range 8 {
		owner := identifiers{GVR: widgets, NamespacedKey: fmt.Sprintf("default/%d", i)}
		group.Go(func() {
			for range 20 {
				if _, err := e.Create(t.Context(), owner, configMaps, newUnnamed()); err != nil {
					t.Error(err)
				}
				if err := e.Await(t.Context(), owner); err != nil {
					t.Error(err)
				}
			}
			e.Forget(owner)
		})
	}
	group.Wait()
	if owners := e.runs.For(t.Context()).owners; len(owners) != 0 || len(server.TakeWrites()) != 160 {
		t.Errorf("still expected: %v", owners)
	}
}

// A create can get lost before it is sent, for example because the replica is no longer the leader.
func TestExpectations_LostCreateIsSentAgain(t *testing.T) {
	for name, executed := range map[string]bool{"the request was lost": false, "the response was lost": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newExpectations(t, 0)
				e.loseFirstCreate()
				if _, err := e.Create(t.Context(), first, configMaps, newUnnamed()); err == nil {
					t.Fatal("no error")
				}
				for _, expectation := range e.state().owners[first] {
					if !executed {
						continue
					}
					if _, err := e.configMaps().Create(t.Context(), expectation.create, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(confirmInterval)
				e.wantWaiting(t.Context(), true)
				created, err := Live(e.server).List(t.Context(), configMaps, "default", labels.Everything())
				if err != nil || len(created) != 1 {
					t.Fatalf("got the children %v and the error %v", created, err)
				}
				e.mustShow(created[0])
			})
		})
	}
}

func TestExpectations_LostDeleteIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newExpectations(t, 0)
		child := e.mustCreate()
		e.mustShow(child)
		e.fail("delete", errors.New("lost"))
		if err := e.Delete(t.Context(), first, configMaps, child); err == nil {
			t.Fatal("no error")
		}
		e.wantWaiting(t.Context(), true)
		time.Sleep(confirmInterval)
		e.wantWaiting(t.Context(), false)
	})
}

// Unless the child has been replaced, the conflict comes from an admission webhook.
func TestExpectations_RejectedDeleteIsNotExpected(t *testing.T) {
	e := newExpectations(t, 0)
	child := e.mustCreate()
	e.mustShow(child)
	conflict := apierrors.NewConflict(configMaps.GroupResource(), child.GetName(), errors.New("not now"))
	e.fail("delete", conflict)
	if err := e.Delete(t.Context(), first, configMaps, child); !errors.Is(err, conflict) {
		t.Errorf("got %v", err)
	}
	e.wantWaiting(t.Context(), false)
}

// A standby's cache can lag when the standby becomes the leader.
func TestExpectations_CatchUpOncePerRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, lagging := newFakeServer(), newFakeServer()
		create := func(servers ...*controllertest.Server) *unstructured.Unstructured {
			t.Helper()
			child := newUnnamed()
			child.SetName(generateName("child-"))
			child.SetUID(types.UID("uid of " + child.GetName()))
			for _, server := range servers {
				server.Add(child)
			}
			return child
		}
		expectations, err := NewExpectations(ExpectationsConfig{Client: server, Cache: Live(lagging)})
		if err != nil {
			t.Fatal(err)
		}
		e := &expectationsTest{T: t, Expectations: expectations}
		catchUp := func(ctx context.Context) {
			t.Helper()
			if err := e.CatchUp(ctx, first, configMaps, "default", labels.Everything()); err != nil {
				t.Fatal(err)
			}
		}
		create(server, lagging)
		created, deleted := create(server), create(lagging)
		fakeserver.InRun(t, func(ctx context.Context) {
			catchUp(ctx)
			e.wantWaiting(ctx, true)
			time.Sleep(confirmInterval)
			e.wantWaiting(ctx, true)
			lagging.Add(created)
			e.wantWaiting(ctx, true)
			lagging.Delete(identifiers{GVR: configMaps, NamespacedKey: "default/" + deleted.GetName()})
			e.wantWaiting(ctx, false)

			create(server)
			catchUp(ctx)
			e.wantWaiting(ctx, false) // CatchUp lists only once per run
			e.Forget(first)
			catchUp(ctx)
			e.wantWaiting(ctx, true)
		})
		synctest.Wait()
		if states := e.runs.All(); len(states) > 0 {
			t.Errorf("%d states are left after the run", len(states))
		}
		fakeserver.InRun(t, func(ctx context.Context) {
			e.wantWaiting(ctx, false) // the expectations of the first run have been dropped
			catchUp(ctx)
			e.wantWaiting(ctx, true)
		})
	})
}
