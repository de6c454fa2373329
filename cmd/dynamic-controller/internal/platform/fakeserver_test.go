package platform

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

// fakeServer is client-go's fake in which what is applied replaces what is there, with a UID and a resourceVersion. It
// stands for a server whose answers can be chosen, and checks no preconditions: what is applied by whom, and refused, is
// tested on a real one.
type fakeServer struct {
	*fake.FakeDynamicClient
	// applied is called with each object that is applied.
	applied func(*unstructured.Unstructured)
	writes  []string // verb, resource, name and subresource
}

func newFakeServer(kinds []schema.GroupVersionKind, objects ...*unstructured.Unstructured) *fakeServer {
	lists := map[schema.GroupVersionResource]string{controllerRevisions: "ControllerRevisionList"}
	for _, gvk := range kinds {
		gvr, _ := meta.UnsafeGuessKindToResource(gvk)
		lists[gvr] = gvk.Kind + "List"
	}
	s := &fakeServer{applied: func(*unstructured.Unstructured) {}}
	s.FakeDynamicClient = fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists)
	for _, object := range objects {
		if err := s.Tracker().Add(object); err != nil {
			panic(err)
		}
	}
	s.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		if patch.GetPatchType() != types.ApplyPatchType {
			return false, nil, nil
		}
		object, err := s.apply(patch)
		return true, object, err
	})
	s.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if name, is := nameIn(action); is && action.GetVerb() != "get" {
			s.writes = append(s.writes, strings.TrimSpace(strings.Join([]string{action.GetVerb(), action.GetResource().Resource, name, action.GetSubresource()}, " ")))
		}
		return false, nil, nil
	})
	return s
}

// took returns what was written since it was last called.
func (s *fakeServer) took() []string {
	writes := s.writes
	s.writes = nil
	return writes
}

// fails has the requests answered with the error.
func (s *fakeServer) fails(verb, name string, err error) {
	s.PrependReactor(verb, "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		named, is := nameIn(action)
		return is && named == name, nil, err
	})
}

// nameIn returns the name of the object that a request is for.
func nameIn(action clienttesting.Action) (name string, is bool) {
	switch action := action.(type) {
	case clienttesting.CreateAction:
		m, err := meta.Accessor(action.GetObject())
		if err != nil {
			return "", false
		}
		return m.GetName(), true
	case interface{ GetName() string }:
		return action.GetName(), true
	}
	return "", false
}

func (s *fakeServer) apply(patch clienttesting.PatchAction) (*unstructured.Unstructured, error) {
	next := &unstructured.Unstructured{}
	if err := json.Unmarshal(patch.GetPatch(), &next.Object); err != nil {
		return nil, err
	}
	there, err := s.Tracker().Get(patch.GetResource(), patch.GetNamespace(), patch.GetName())
	switch before, _ := there.(*unstructured.Unstructured); {
	case apierrors.IsNotFound(err):
		next.SetUID(types.UID(fmt.Sprintf("uid-%d", len(s.writes))))
	case err != nil:
		return nil, err
	case patch.GetSubresource() == "status":
		status := next.Object["status"]
		next = before.DeepCopy()
		next.Object["status"] = status
	default:
		next.SetUID(before.GetUID())
		next.SetGeneration(before.GetGeneration())
	}
	next.SetResourceVersion(strconv.Itoa(len(s.writes)))
	if err != nil {
		err = s.Tracker().Create(patch.GetResource(), next, patch.GetNamespace())
	} else {
		err = s.Tracker().Update(patch.GetResource(), next, patch.GetNamespace())
	}
	s.applied(next.DeepCopy())
	return next, err
}
