package restmapper

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestTypeEvents_ReportEachVersionThatBeginsOrEndsToBeServed(t *testing.T) {
	inMemory(t, func(r *running) {
		var received []string
		defer r.TypeEvents(func(resource schema.GroupVersionResource, served bool) {
			if resource.Group == widget.Group {
				received = append(received, fmt.Sprintf("%s/%s %t", resource.Version, resource.Resource, served))
			}
		})()
		r.api.setCRD(widget.Group, widget.Kind, "v1")
		r.start()
		r.waitFor(widget)
		for _, step := range []struct {
			name string
			act  func()
			want []string
		}{
			{"a resource that was known before", func() {}, []string{"v1/widgets true"}},
			{
				"a version is added", func() { r.api.setCRD(widget.Group, widget.Kind, "v1", "v2") },
				[]string{"v2/widgets true", "v1/widgets true"},
			},
			{
				"a version is removed", func() { r.api.setCRD(widget.Group, widget.Kind, "v2") },
				[]string{"v1/widgets false", "v2/widgets true"},
			},
			{
				"the resource is removed", func() { r.api.deleteCRD(widget.Group, widget.Kind) },
				[]string{"v2/widgets false"},
			},
		} {
			step.act()
			synctest.Wait()
			if !slices.Equal(received, step.want) {
				t.Errorf("%s: received %q, want %q", step.name, received, step.want)
			}
			received = nil
		}
	})
}

func TestTypeEvents_CancelWaitsForTheCallInProgress(t *testing.T) {
	inMemory(t, func(r *running) {
		called, release := make(chan struct{}), make(chan struct{})
		cancel := r.TypeEvents(func(schema.GroupVersionResource, bool) {
			called <- struct{}{}
			<-release
		})
		r.start()
		<-called
		cancelled := make(chan struct{})
		go func() {
			defer close(cancelled)
			cancel()
		}()
		time.Sleep(time.Minute)
		select {
		case <-cancelled:
			t.Error("cancel has returned during a call")
		default:
		}
		close(release)
		<-cancelled
	})
}
