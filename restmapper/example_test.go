package restmapper

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// This example runs a mapper and waits for a kind that is not defined yet.
func Example() {
	api := newFakeAPI() // takes the place of a cluster
	defer api.close()
	mapper, err := New(logr.Discard(), api.config())
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = mapper.RESTMapping(schema.GroupKind{Kind: "Pod"})
	fmt.Println("before the first sync:", errors.Is(err, ErrNotSynced), meta.IsNoMatchError(err))

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mapper.Run(ctx) }()

	go api.setCRD("example.com", "Widget", "v1", "v2")
	mapping, err := mapper.WaitForMapping(ctx, schema.GroupKind{Group: "example.com", Kind: "Widget"})
	if err != nil {
		fmt.Println(err)
	} else {
		fmt.Println(mapping.Resource, mapping.Scope.Name())
	}
	short, err := mapper.ResourceFor(schema.GroupVersionResource{Resource: "Wx"})
	fmt.Println(short, err)
	cancel()
	fmt.Println("run:", <-ended)
	// Output:
	// before the first sync: true false
	// example.com/v2, Resource=widgets namespace
	// example.com/v2, Resource=widgets <nil>
	// run: <nil>
}

// This example prints the kinds of one group as they are added and removed.
func ExampleMapper_Subscribe() {
	api := newFakeAPI() // takes the place of a cluster
	defer api.close()
	api.setCRD("example.com", "Widget", "v1")
	mapper, err := New(logr.Discard(), api.config())
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mapper.Run(ctx) }()

	called := make(chan struct{})
	unsubscribe := mapper.Subscribe(func(c Change) {
		if c.Kind.Group == "example.com" {
			fmt.Println(c.Type, c.Kind)
			called <- struct{}{}
		}
	})
	<-called
	api.deleteCRD("example.com", "Widget")
	<-called
	<-unsubscribe() // no call is in progress after this
	cancel()
	fmt.Println("run:", <-ended)
	// Output:
	// Added Widget.example.com
	// Removed Widget.example.com
	// run: <nil>
}

// This example distinguishes an unknown kind from a kind of an aggregated API that is not available.
func ExampleMapper_Refresh() {
	api := newFakeAPI() // takes the place of a cluster
	defer api.close()
	api.setGroupAs("metrics.example.com", "v1", "", "Stale") // its server cannot be reached
	mapper, err := New(logr.Discard(), api.config())
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mapper.Run(ctx) }()

	groups, _ := discovery.GroupDiscoveryFailedErrorGroups(mapper.Refresh(ctx))
	fmt.Println("failing groups:", len(groups))
	_, err = mapper.RESTMapping(schema.GroupKind{Group: "metrics.example.com", Kind: "Metric"})
	fmt.Println("unknown because discovery fails:", err != nil && !meta.IsNoMatchError(err))
	_, err = mapper.RESTMapping(schema.GroupKind{Group: "apps", Kind: "Unknown"})
	fmt.Println("does not exist:", meta.IsNoMatchError(err))
	cancel()
	fmt.Println("run:", <-ended)
	// Output:
	// failing groups: 1
	// unknown because discovery fails: true
	// does not exist: true
	// run: <nil>
}
