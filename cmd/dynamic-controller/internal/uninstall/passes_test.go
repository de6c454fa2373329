package uninstall

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

var depots = typeInfo{
	name: "depots.example.com", namespaced: true,
	gvr: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "depots"},
}

// newInstances returns an uninstaller for one instance with the platform's finalizer in each namespace.
func newInstances(namespaces ...string) (*uninstaller, *fake.FakeMetadataClient) {
	var objects []runtime.Object
	for _, namespace := range namespaces {
		objects = append(objects, &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "Depot"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: "d", Finalizers: []string{instances.ChildrenFinalizer},
			},
		})
	}
	scheme := fake.NewTestScheme()
	_ = metav1.AddMetaToScheme(scheme)
	client := fake.NewSimpleMetadataClient(scheme, objects...)
	return &uninstaller{Options: Options{Apply: true, Out: io.Discard}, metadata: client}, client
}

// released returns the namespaces of the instances that were patched.
func released(client *fake.FakeMetadataClient) (namespaces []string) {
	for _, action := range client.Actions() {
		if action.GetVerb() == "patch" {
			namespaces = append(namespaces, action.GetNamespace())
		}
	}
	return namespaces
}

// A list that has expired is repeated as often as necessary.
func TestCleanUpInstances_RepeatsExpiredLists(t *testing.T) {
	u, client := newInstances("a")
	left := 10
	client.PrependReactor("list", "depots", func(clienttesting.Action) (bool, runtime.Object, error) {
		left--
		return left >= 0, nil, apierrors.NewResourceExpired("the token has expired")
	})
	u.types = []typeInfo{depots}
	if err := u.cleanUpInstances(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := released(client); len(got) != 1 {
		t.Errorf("released %v", got)
	}
}

func TestCleanUpInstances_ReleasesInstancesInOtherNamespaces(t *testing.T) {
	for name, forbidden := range map[string]bool{"permitted": false, "forbidden": true} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			u, client := newInstances("a", "b")
			u.Namespaces, u.Out, u.types = []string{"a"}, &out, []typeInfo{depots}
			client.PrependReactor("list", "depots", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return forbidden && action.GetNamespace() == "", nil, apierrors.NewForbidden(depots.gvr.GroupResource(), "", nil)
			})
			if err := u.cleanUpInstances(context.Background()); err != nil {
				t.Fatal(err)
			}
			want := "[a b]"
			if forbidden {
				want = "[a]"
			}
			if got := fmt.Sprint(released(client)); got != want {
				t.Errorf("released %s, want %s", got, want)
			}
			if warned := strings.Contains(out.String(), "--all-namespaces"); warned != forbidden {
				t.Errorf("got output %s", out.String())
			}
		})
	}
}

// A type that is not served is reported, and not deleted.
func TestCleanUpInstances_ReportsTypesThatCannotBeListed(t *testing.T) {
	var out bytes.Buffer
	u, client := newInstances()
	u.Out, u.DeleteInstances, u.types = &out, true, []typeInfo{depots}
	u.types[0].owned = true
	client.PrependReactor("list", "depots", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(depots.gvr.GroupResource(), "")
	})
	if err := u.cleanUpInstances(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "the instances of depots.example.com cannot be listed") || u.isDeleted(u.types[0]) {
		t.Errorf("got output %s", out.String())
	}
}
