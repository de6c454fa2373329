package handlers

import (
	"context"
	"errors"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

// stale is a cache that shows what it is told to.
type stale map[string]*unstructured.Unstructured

func (s stale) Get(_ context.Context, gvr schema.GroupVersionResource, _, name string) (*unstructured.Unstructured, error) {
	if object := s[name]; object != nil {
		return object, nil
	}
	return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
}

func (s stale) List(context.Context, schema.GroupVersionResource, string, labels.Selector) ([]*unstructured.Unstructured, error) {
	return nil, errors.New("not listed here")
}

func unnamed() *unstructured.Unstructured {
	child := newConfigMap("", "x")
	child.SetNamespace("default")
	child.SetGenerateName("child-")
	return child
}

func isWaiting(t *testing.T, e *Expectations, want bool) {
	t.Helper()
	err := e.Await(t.Context(), first)
	if err != nil && !strings.HasPrefix(err.Error(), "requeue after") {
		t.Fatal(err)
	}
	if (err != nil) != want {
		t.Fatalf("waiting: %v", err)
	}
}

func TestWhatWasMadeIsAwaitedUntilTheCacheShowsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, cache := newFakeServer(), stale{}
		e := NewExpectations(server, cache, 0)
		isWaiting(t, e, false)
		made, err := e.Create(t.Context(), first, configMaps, unnamed())
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(made.GetName(), "child-") || len(made.GetName()) != len("child-")+suffixLength {
			t.Errorf("it is named %s", made.GetName())
		}
		isWaiting(t, e, true)
		cache[made.GetName()] = made
		isWaiting(t, e, false)

		if err := e.Delete(t.Context(), first, configMaps, made); err != nil {
			t.Fatal(err)
		}
		isWaiting(t, e, true)
		delete(cache, made.GetName())
		isWaiting(t, e, false)
		if len(e.owners) != 0 {
			t.Errorf("there is left: %v", e.owners)
		}
	})
}

func TestWhatIsBeingDeletedIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, cache := newFakeServer(), stale{}
		e := NewExpectations(server, cache, 0)
		made, err := e.Create(t.Context(), first, configMaps, unnamed())
		if err != nil {
			t.Fatal(err)
		}
		cache[made.GetName()] = made
		isWaiting(t, e, false)
		if err := e.Delete(t.Context(), first, configMaps, made); err != nil {
			t.Fatal(err)
		}
		isWaiting(t, e, true)
		going := made.DeepCopy()
		now := metav1.Now()
		going.SetDeletionTimestamp(&now)
		cache[made.GetName()] = going
		isWaiting(t, e, false)
	})
}

// After an answer that was lost the child is awaited, for it may have been made; after a refusal it is not.
func TestALostAnswerIsNoRefusal(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"a refusal":       {apierrors.NewForbidden(configMaps.GroupResource(), "x", errors.New("no")), false},
		"an existing one": {apierrors.NewAlreadyExists(configMaps.GroupResource(), "x"), false},
		"a lost answer":   {errors.New("connection reset"), true},
		"a timeout":       {apierrors.NewTimeoutError("x", 1), true},
		"a server error":  {apierrors.NewInternalError(errors.New("x")), true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, cache := newFakeServer(), stale{}
				server.PrependReactor("create", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.err })
				e := NewExpectations(server, cache, time.Minute)
				if _, err := e.Create(t.Context(), first, configMaps, unnamed()); !errors.Is(err, c.err) {
					t.Errorf("got %v", err)
				}
				isWaiting(t, e, c.want)
				time.Sleep(59 * time.Second)
				if err := e.Await(t.Context(), first); c.want != errors.Is(err, c.err) {
					t.Errorf("when it was sent again, got %v", err)
				}
				isWaiting(t, e, c.want)
				time.Sleep(time.Second)
				isWaiting(t, e, false)
			})
		})
	}
}

// A child that was made and deleted before the cache showed it is never seen: the API server is asked, now and then.
func TestAChildThatNoCacheEverShowsIsNotAwaitedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, cache := newFakeServer(), stale{}
		e := NewExpectations(server, cache, 0)
		made, err := e.Create(t.Context(), first, configMaps, unnamed())
		if err != nil {
			t.Fatal(err)
		}
		asked := func() (n int) {
			for _, action := range server.Actions() {
				if action.GetVerb() == "get" {
					n++
				}
			}
			return n
		}
		for range 35 {
			time.Sleep(time.Second)
			isWaiting(t, e, true)
		}
		if n := asked(); n != 3 {
			t.Errorf("asked %d times in 35 s", n)
		}
		if err := resource(server, configMaps, "default").Delete(t.Context(), made.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(confirmAfter)
		isWaiting(t, e, false)
	})
}

// What is expected for owners that never ask again is dropped, and Forget drops it at once.
func TestGoneOwnersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, cache := newFakeServer(), stale{}
		e := NewExpectations(server, cache, time.Minute)
		for _, owner := range []string{"default/a", "default/b"} {
			if _, err := e.Create(t.Context(), identifiers{GVR: widgets, NamespacedKey: owner}, configMaps, unnamed()); err != nil {
				t.Fatal(err)
			}
		}
		e.Forget(identifiers{GVR: widgets, NamespacedKey: "default/b"})
		if len(e.owners) != 1 {
			t.Errorf("there are %v", e.owners)
		}
		time.Sleep(time.Minute)
		if _, err := e.Create(t.Context(), first, configMaps, unnamed()); err != nil {
			t.Fatal(err)
		}
		if len(e.owners) != 1 || len(e.owners[first]) != 1 {
			t.Errorf("there are %v", e.owners)
		}
	})
}

func TestExpectationsAreSafeForConcurrentUse(t *testing.T) {
	server := newFakeServer()
	e := NewExpectations(server, Live(server), 0)
	var group sync.WaitGroup
	for i := range 8 {
		owner := identifiers{GVR: widgets, NamespacedKey: "default/" + string(rune('a'+i))}
		group.Go(func() {
			for range 20 {
				if _, err := e.Create(t.Context(), owner, configMaps, unnamed()); err != nil {
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
	if len(e.owners) != 0 || len(server.took()) != 160 {
		t.Errorf("there is left: %v", e.owners)
	}
}

// A create, or a deletion, that never was sent, for the replica led no longer for example, holds its owner up for as long as
// it takes to ask, and no longer.
func TestWhatWasNeverSentIsSettledSoon(t *testing.T) {
	for name, carriedOut := range map[string]bool{"never sent": false, "carried out, and the answer lost": true} {
		t.Run("a create, "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, cache, lost := newFakeServer(), stale{}, true
				server.PrependReactor("create", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
					if !lost {
						return false, nil, nil
					}
					lost = false
					return true, nil, errors.New("lost")
				})
				e := NewExpectations(server, cache, 0)
				if _, err := e.Create(t.Context(), first, configMaps, unnamed()); err == nil {
					t.Fatal("no error")
				}
				for child, want := range e.owners[first] {
					if !carriedOut {
						continue
					}
					if _, err := resource(server, child.GVR, "default").Create(t.Context(), want.create, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(confirmAfter)
				isWaiting(t, e, true)
				made, err := Live(server).List(t.Context(), configMaps, "default", labels.Everything())
				if err != nil || len(made) != 1 {
					t.Fatalf("there are %v, %v", made, err)
				}
				cache[made[0].GetName()] = made[0]
				isWaiting(t, e, false)
			})
		})
	}
	t.Run("a deletion", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			server, cache := newFakeServer(), stale{}
			e := NewExpectations(server, cache, 0)
			made, err := e.Create(t.Context(), first, configMaps, unnamed())
			if err != nil {
				t.Fatal(err)
			}
			cache[made.GetName()] = made
			isWaiting(t, e, false)
			server.PrependReactor("delete", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("lost") })
			if err := e.Delete(t.Context(), first, configMaps, made); err == nil {
				t.Fatal("no error")
			}
			isWaiting(t, e, true)
			time.Sleep(confirmAfter)
			isWaiting(t, e, false)
		})
	})
}

// A conflict that is no replacement is an admission webhook's refusal: the child is still there.
func TestARefusedDeletionIsNoDeletion(t *testing.T) {
	server, cache := newFakeServer(), stale{}
	e := NewExpectations(server, cache, 0)
	made, err := e.Create(t.Context(), first, configMaps, unnamed())
	if err != nil {
		t.Fatal(err)
	}
	cache[made.GetName()] = made
	refusal := apierrors.NewConflict(configMaps.GroupResource(), made.GetName(), errors.New("not now"))
	server.PrependReactor("delete", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refusal })
	if err := e.Delete(t.Context(), first, configMaps, made); !errors.Is(err, refusal) {
		t.Errorf("got %v", err)
	}
	isWaiting(t, e, false)
}

// A standby's cache was synced long ago. The first time, and in a new term, an owner waits until it shows what there is.
func TestAnOwnerCatchesUpWithTheServerOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, behind := newFakeServer(), newFakeServer()
		put := func(servers ...*fakeServer) *unstructured.Unstructured {
			child := unnamed()
			child.SetName(generatedName("child-"))
			child.SetUID(types.UID("uid of " + child.GetName()))
			for _, server := range servers {
				if _, err := resource(server, configMaps, "default").Create(t.Context(), child, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			return child
		}
		drop := func(server *fakeServer, child *unstructured.Unstructured) {
			if err := resource(server, configMaps, "default").Delete(t.Context(), child.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		e := NewExpectations(server, Live(behind), 0)
		catchUp := func() {
			t.Helper()
			if err := e.CatchUp(t.Context(), first, configMaps, "default", labels.Everything()); err != nil {
				t.Fatal(err)
			}
		}
		put(server, behind)
		made, deleted := put(server), put(behind)
		catchUp()
		isWaiting(t, e, true)
		time.Sleep(confirmAfter)
		isWaiting(t, e, true)
		if _, err := resource(behind, configMaps, "default").Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		isWaiting(t, e, true)
		drop(behind, deleted)
		isWaiting(t, e, false)

		put(server)
		catchUp()
		isWaiting(t, e, false) // it led all the time
		e.ForgetAll()
		catchUp()
		isWaiting(t, e, true)
		e.Forget(first)
		if len(e.owners)+len(e.caught) != 0 {
			t.Errorf("there is left: %v, %v", e.owners, e.caught)
		}
	})
}
