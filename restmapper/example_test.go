package restmapper

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A mapper runs beside whatever needs it, and a caller waits for a kind that somebody is about to define.
func Example() {
	api := newFakeAPI() // in place of a cluster
	defer api.close()
	mapper, err := New(logr.Discard(), api.config())
	if err != nil {
		panic(err)
	}
	_, err = mapper.RESTMapping(schema.GroupKind{Kind: "Pod"})
	fmt.Println("before it has synced:", errors.Is(err, ErrNotSynced), meta.IsNoMatchError(err))

	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = mapper.Run(ctx) })
	defer running.Wait()
	defer cancel()

	kind := schema.GroupKind{Group: "example.com", Kind: "Widget"}
	go api.setCRD("example.com", "Widget", "v1", "v2") // by somebody else
	mapping, err := mapper.WaitForMapping(ctx, kind)
	if err != nil {
		panic(err)
	}
	fmt.Println(mapping.Resource, mapping.Scope.Name())
	short, err := mapper.ResourceFor(schema.GroupVersionResource{Resource: "Wx"})
	fmt.Println(short, err)
	// Output:
	// before it has synced: true false
	// example.com/v2, Resource=widgets namespace
	// example.com/v2, Resource=widgets <nil>
}

// A subscriber starts and stops what works for each kind of a group.
func ExampleMapper_Subscribe() {
	api := newFakeAPI()
	defer api.close()
	api.setCRD("example.com", "Widget", "v1")
	mapper, err := New(logr.Discard(), api.config())
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = mapper.Run(ctx) })
	defer running.Wait()
	defer cancel()

	told := make(chan struct{})
	unsubscribe := mapper.Subscribe(func(c Change) {
		if c.Kind.Group == "example.com" {
			fmt.Println(c.Type, c.Kind)
			told <- struct{}{}
		}
	})
	<-told
	api.deleteCRD("example.com", "Widget")
	<-told
	unsubscribe()
	// Output:
	// Added Widget.example.com
	// Removed Widget.example.com
}
