package events_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/events"
)

// Run writes the recorded events before it returns. The second event with the same key is not written.
func ExampleRecorder() {
	client := fake.NewClientset().EventsV1()
	shop := &unstructured.Unstructured{}
	shop.SetAPIVersion("shop.example.com/v1")
	shop.SetKind("Shop")
	shop.SetNamespace("default")
	shop.SetName("flowers")
	recorder := events.New(logr.Discard(), client)
	err := recorder.Run(context.Background(), func(context.Context) error {
		recorder.Record(events.Event{Regarding: shop, Reason: events.Failed, Note: "page: waiting for service"})
		for range 2 {
			recorder.Record(events.Event{Regarding: shop, Reason: events.Ready, Note: "2 resources are ready", Key: "1"})
		}
		return nil
	})
	list, _ := client.Events("default").List(context.Background(), metav1.ListOptions{})
	slices.SortFunc(list.Items, func(a, b eventsv1.Event) int { return cmp.Compare(a.Reason, b.Reason) })
	for _, e := range list.Items {
		fmt.Println(e.Regarding.Kind, e.Regarding.Name, e.Type, e.Reason, e.Note)
	}
	fmt.Println(err)
	// Output:
	// Shop flowers Warning Failed page: waiting for service
	// Shop flowers Normal Ready 2 resources are ready
	// <nil>
}
