package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
)

// measureEstablished defines types one after another. All times start when a watch of CRDs reports the type as
// established. They end when the engine has synced the type, when an object has been applied, and when the object has
// been reconciled.
func measureEstablished(ctx context.Context, r *run) (_ measures, err error) {
	group := fmt.Sprintf("e%d.bench.example.com", os.Getpid())
	e, end, err := r.engine(ctx, 1)
	if err != nil {
		return nil, err
	}
	crds := r.client.Resource(crdResource)
	list, err := crds.List(ctx, oneObject)
	if err != nil {
		return nil, err
	}
	events, err := crds.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		return nil, err
	}
	defer events.Stop()

	var synced, written, reconciled, afterWrite []time.Duration
	for i := range r.Define {
		gvr := resourceOf(group, i)
		defer func() { err = errors.Join(err, crds.Delete(ctx, gvr.GroupResource().String(), metav1.DeleteOptions{})) }()
		times, err := r.defineAndServe(ctx, e, events, gvr)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", gvr, err)
		}
		synced, written = append(synced, times.synced), append(written, times.written)
		reconciled = append(reconciled, times.reconciled)
		afterWrite = append(afterWrite, max(0, times.reconciled-times.written))
		select {
		case <-time.After(r.DefinePause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if err := end(); err != nil {
		return nil, err
	}
	m := quantiles("synced", synced)
	m = append(m, quantiles("written", written)...)
	m = append(m, quantiles("reconciled", reconciled)...)
	m = append(m, quantiles("after-write", afterWrite)...)
	late := float64(over(500*time.Millisecond, reconciled)) / float64(len(reconciled))
	return append(m, measure{"over-500ms/types", late}), nil
}

// over counts the durations that exceed the limit.
func over(limit time.Duration, times []time.Duration) (n int) {
	for _, t := range times {
		if t > limit {
			n++
		}
	}
	return n
}

type establishedTimes struct{ synced, written, reconciled time.Duration }

func (r *run) defineAndServe(
	ctx context.Context, e engine, events watch.Interface, gvr schema.GroupVersionResource,
) (t establishedTimes, err error) {
	const timeout = time.Minute
	if err := define(ctx, r.client, gvr, smallVersion); err != nil {
		return t, err
	}
	if err := awaitEstablished(ctx, events, gvr); err != nil {
		return t, err
	}
	established := time.Now()
	first, isFirst := signal()
	var steps errgroup.Group
	steps.Go(func() error {
		err := r.apply(ctx, gvr)
		t.written = time.Since(established)
		return err
	})
	steps.Go(func() error {
		if err := e.Start(ctx, gvr, func(string) { first() }); err != nil {
			return err
		}
		err := e.WaitForSync(ctx, gvr)
		t.synced = time.Since(established)
		return err
	})
	steps.Go(func() error {
		err := await(ctx, isFirst, timeout)
		t.reconciled = time.Since(established)
		return err
	})
	if err := steps.Wait(); err != nil {
		return t, err
	}
	return t, e.Stop(ctx, gvr)
}

func awaitEstablished(ctx context.Context, events watch.Interface, gvr schema.GroupVersionResource) error {
	for {
		select {
		case event, open := <-events.ResultChan():
			if !open {
				return errors.New("the watch of CRDs was closed")
			}
			crd, ok := event.Object.(*unstructured.Unstructured)
			if ok && crd.GetName() == gvr.GroupResource().String() && isTrue(crd, "Established") {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// apply applies an object as soon as the API server accepts it. The API server delays the first POST of a new type by
// two seconds, but not a PATCH.
func (r *run) apply(ctx context.Context, gvr schema.GroupVersionResource) error {
	const pause = 2 * time.Millisecond
	return wait.PollUntilContextCancel(ctx, pause, true, func(ctx context.Context) (bool, error) {
		_, err := r.client.Resource(gvr).Namespace(namespace).Apply(ctx, nameOf(0), object(gvr, 0),
			metav1.ApplyOptions{FieldManager: "bench"})
		return err == nil, nil
	})
}
