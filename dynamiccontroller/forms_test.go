package dynamiccontroller_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// form is a combination of options. It determines the form of the objects that the functions of these options receive.
type form struct {
	mode      dynamiccontroller.CacheMode
	transform string // added as an annotation; empty if there is no transform
}

func (f form) options() (options []dynamiccontroller.CommonOption) {
	options = append(options, dynamiccontroller.WithCache(f.mode))
	if f.transform != "" {
		options = append(options, dynamiccontroller.WithTransform(func(obj any) (any, error) {
			obj.(metav1.Object).SetAnnotations(map[string]string{"transform": f.transform})
			return obj, nil
		}))
	}
	return options
}

// check returns a description of what differs from the form, or "".
func (f form) check(o dynamiccontroller.Object) string {
	if o == nil {
		return ""
	}
	if got := o.GetAnnotations()["transform"]; got != f.transform {
		return fmt.Sprintf("the metadata was transformed by %q, want %q", got, f.transform)
	}
	decoded := o.Object()
	if got := decoded.(metav1.Object).GetAnnotations()["transform"]; got != f.transform {
		return fmt.Sprintf("the object was transformed by %q, want %q", got, f.transform)
	}
	u, whole := decoded.(*unstructured.Unstructured)
	if wants := f.mode == dynamiccontroller.CacheFull; whole != wants || whole && u.Object["spec"] == nil {
		return fmt.Sprintf("got a %T, want a whole object: %t", decoded, wants)
	}
	return ""
}

// While the projections and transforms of a type and its watch change, objects change. Each function receives objects
// only in the form of the options with which it was passed.
func TestForms_FunctionsReceiveObjectsInTheFormOfTheirOptions(t *testing.T) {
	f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
	gvr, watched := f.types[0], f.types[1]
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- f.controller.Run(ctx) }()
	over := make(chan struct{})
	var writers sync.WaitGroup
	for _, resource := range f.types {
		writers.Go(func() { changeObjects(ctx, over, f.client.Resource(resource).Namespace("default"), resource) })
	}
	var predicates, maps, wrong atomic.Int64
	report := func(function, problem string) {
		if problem != "" && wrong.Add(1) < 10 {
			t.Errorf("%s: %s", function, problem)
		}
	}
	predicate := func(form form, name string) dynamiccontroller.CommonOption {
		return dynamiccontroller.WithPredicate(func(_ context.Context, o, n dynamiccontroller.Object) bool {
			predicates.Add(1)
			report(name, form.check(o))
			report(name, form.check(n))
			return true
		})
	}
	anyForm := func(i int) form {
		form := form{mode: []dynamiccontroller.CacheMode{
			dynamiccontroller.CacheFull, dynamiccontroller.CacheMetadata,
		}[rand.N(2)]}
		if rand.N(3) == 0 {
			form.transform = fmt.Sprint("t", i)
		}
		return form
	}
	for i := range 300 {
		own, other := anyForm(i), anyForm(i)
		options := []dynamiccontroller.ServeOption{predicate(own, "predicate")}
		for _, o := range own.options() {
			options = append(options, o)
		}
		mapOptions := []dynamiccontroller.WatchesOption{predicate(other, "predicate of the watch")}
		for _, o := range other.options() {
			mapOptions = append(mapOptions, o)
		}
		options = append(options, dynamiccontroller.Watches(watched,
			func(_ context.Context, o dynamiccontroller.Object) []string {
				maps.Add(1)
				report("MapFunc", other.check(o))
				return nil
			}, mapOptions...))
		if err := f.controller.StartServingGVK(ctx, gvr, succeed, options...); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.N(8)) * time.Millisecond)
	}
	close(over)
	writers.Wait()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	t.Logf("%d calls of predicates, %d of MapFuncs, %d wrong", predicates.Load(), maps.Load(), wrong.Load())
	if predicates.Load() == 0 || maps.Load() == 0 {
		t.Error("a function was not called")
	}
}

// changeObjects creates, changes and deletes objects at random until over is closed.
func changeObjects(
	ctx context.Context, over <-chan struct{}, client dynamic.ResourceInterface, gvr schema.GroupVersionResource,
) {
	for i := 0; ; i++ {
		select {
		case <-over:
			return
		default:
		}
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"i": int64(i)}}}
		o.SetGroupVersionKind(gvr.GroupVersion().WithKind("Type"))
		o.SetName(fmt.Sprint(rand.N(20)))
		o.SetResourceVersion(fmt.Sprint(i + 1000))
		var err error
		switch rand.N(4) {
		case 0:
			err = client.Delete(ctx, o.GetName(), metav1.DeleteOptions{})
		case 1:
			_, err = client.Create(ctx, o, metav1.CreateOptions{})
		default:
			_, err = client.Update(ctx, o, metav1.UpdateOptions{})
		}
		_ = err // the object may or may not exist
		time.Sleep(20 * time.Microsecond)
	}
}
