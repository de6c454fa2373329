package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func TestTypeStatusOf_ReturnsTheStatusOfOneType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{ResyncPeriod: -1})
		stop := f.run()
		for i, gvr := range f.types[:2] {
			f.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil },
				dynamiccontroller.Owns(f.types[2]))
			for n := range i + 1 {
				f.put(gvr, fmt.Sprintf("w%d", n))
			}
		}
		for i, want := range f.controller.Status() {
			got, err := f.controller.TypeStatusOf(want.GVR)
			if err != nil || got.Objects != i+1 || !reflect.DeepEqual(got, want) {
				t.Errorf("got status %+v and error %v, want %+v", got, err, want)
			}
		}
		stop()
	})
}

func TestTypeStatusOf_ReturnsErrNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{})
		f.serve(f.types[0], func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil },
			dynamiccontroller.Owns(f.types[1]))
		if _, err := f.controller.TypeStatusOf(f.types[0]); err != nil {
			t.Error(err)
		}
		if err := f.controller.StopServiceGVK(t.Context(), f.types[0]); err != nil {
			t.Fatal(err)
		}
		for name, gvr := range map[string]schema.GroupVersionResource{"stopped": f.types[0], "watched only": f.types[1]} {
			if _, err := f.controller.TypeStatusOf(gvr); !errors.Is(err, dynamiccontroller.ErrNotServed) {
				t.Errorf("%s: TypeStatusOf returned %v, want ErrNotServed", name, err)
			}
		}
	})
}

// The status of a single type costs the same, however many types are served and however many objects are parked.
func TestTypeStatusOf_AllocatesTheSame(t *testing.T) {
	const few, many = 10, 500
	allocations := func(types, parked int) (n float64) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, types, dynamiccontroller.Config{ResyncPeriod: -1})
			stop := f.run()
			for _, gvr := range f.types {
				f.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
					return dynamiccontroller.Terminal(errOnPurpose)
				})
			}
			for i := range parked {
				f.controller.Enqueue(f.id(f.types[0], fmt.Sprint(i)))
			}
			synctest.Wait()
			n = testing.AllocsPerRun(10, func() {
				if status, err := f.controller.TypeStatusOf(f.types[0]); err != nil || status.Parked != parked {
					t.Errorf("got status %+v and error %v, want %d parked objects", status, err, parked)
				}
			})
			stop()
		})
		return n
	}
	want := allocations(few, few)
	// The number can differ by a few, because other goroutines also allocate.
	if n := allocations(many, few); n > want+few {
		t.Errorf("got %g allocations with %d types, want %g as with %d types", n, many, want, few)
	}
	if n := allocations(few, many); n > want+few {
		t.Errorf("got %g allocations with %d parked objects, want %g as with %d", n, many, want, few)
	}
}

// Objects that were parked at the same time are sorted by key.
func TestD8_StatusShowsTheNewestParkedObjects(t *testing.T) {
	const seconds, perSecond, details, repeats = 10, 4, 10, 50
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{ResyncPeriod: -1})
		stop := f.run()
		f.serve(f.types[0], func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			return dynamiccontroller.Terminal(errOnPurpose)
		})
		var want []string
		for second := range seconds {
			for i := range perSecond {
				id := f.id(f.types[0], fmt.Sprintf("%d-%d", seconds-second, i))
				f.controller.Enqueue(id)
				want = append(want, id.NamespacedKey)
			}
			time.Sleep(time.Second)
		}
		want = want[len(want)-details:]
		for range repeats { // the order in which the objects are visited is random
			var got []string
			for _, parked := range f.status(f.types[0]).NewestParked {
				got = append(got, parked.Key)
			}
			if !slices.Equal(got, want) {
				t.Errorf("got the parked objects %v, want %v", got, want)
			}
		}
		stop()
	})
}

// slowLists is an API server in memory whose lists contain an item per second, and do not end.
type slowLists struct{ memoryServer }

func (s *slowLists) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := s.memoryServer.RoundTrip(r)
	if response.StatusCode != http.StatusOK {
		return response, err
	}
	reader, writer := io.Pipe()
	context.AfterFunc(r.Context(), func() { _ = reader.CloseWithError(r.Context().Err()) })
	go func() {
		_, err := io.WriteString(writer, `{"apiVersion":"example.com/v1","kind":"WidgetList","items":[null`)
		for n := 1; err == nil; n++ {
			time.Sleep(time.Second)
			_, err = io.WriteString(writer, ","+widget(fmt.Sprintf(`"namespace":"ns","name":"w%d"`, n)))
		}
	}()
	response.Body = reader
	return response, err
}

func TestS5_SyncingForTenSecondsHasAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := &rest.Config{Host: "http://server.example.com", Transport: &slowLists{}}
		c, err := dynamiccontroller.NewForConfig(logr.Discard(), dynamiccontroller.Config{}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.StartServingGVK(t.Context(), widgetsGVR, succeed); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		stop := inBackground(c.Run)
		time.Sleep(9*time.Second + time.Second/2)
		s := must(c.TypeStatusOf(widgetsGVR)).WatchStatus
		if s.State != dynamiccontroller.TypeSyncing || s.Message != "" || s.ListItems != 10 || !s.ListingSince.Equal(began) {
			t.Errorf("after 9 s: %+v", s)
		}
		time.Sleep(3 * time.Second)
		s = must(c.TypeStatusOf(widgetsGVR)).WatchStatus
		if s.State != dynamiccontroller.TypeSyncing || s.Message != "the list is not complete yet; items so far: 13" {
			t.Errorf("after 12 s: %+v", s)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second) // until the server has noticed
	})
}
