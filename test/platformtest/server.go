package platformtest

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Server is a fake dynamic client with a server-side apply that replaces objects. It sets UIDs and resourceVersions. It
// does not implement field ownership, conflicts or other preconditions, or dry runs of a server-side apply. These are
// tested against a real API server.
type Server struct {
	*fake.FakeDynamicClient
	// Applied is called with each object that is applied.
	Applied func(*unstructured.Unstructured)
	Writes  []string // verb, resource, name and subresource
}

// NewServer returns a Server that contains the given objects.
func NewServer(kinds []schema.GroupVersionKind, objects ...*unstructured.Unstructured) *Server {
	lists := map[schema.GroupVersionResource]string{
		appsv1.SchemeGroupVersion.WithResource("controllerrevisions"): "ControllerRevisionList",
	}
	for _, gvk := range kinds {
		gvr, _ := meta.UnsafeGuessKindToResource(gvk)
		lists[gvr] = gvk.Kind + "List"
	}
	s := &Server{Applied: func(*unstructured.Unstructured) {}}
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
	s.PrependReactor("*", "*", s.dryRun)
	s.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if name, is := nameIn(action); is && action.GetVerb() != "get" {
			s.Writes = append(s.Writes,
				strings.TrimSpace(strings.Join([]string{action.GetVerb(), action.GetResource().Resource, name,
					action.GetSubresource()}, " ")))
		}
		return false, nil, nil
	})
	return s
}

// dryRun handles dry runs of creates and merge patches.
func (s *Server) dryRun(action clienttesting.Action) (handled bool, object runtime.Object, err error) {
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		return len(action.CreateOptions.DryRun) > 0, action.GetObject(), nil
	case clienttesting.PatchActionImpl:
		if len(action.PatchOptions.DryRun) == 0 || action.GetPatchType() != types.MergePatchType {
			return false, nil, nil
		}
		object, err = s.Tracker().Get(action.GetResource(), action.GetNamespace(), action.GetName())
		return true, object, err
	}
	return false, nil, nil
}

// Took returns the writes that the server has received since the last call to Took.
func (s *Server) Took() []string {
	writes := s.Writes
	s.Writes = nil
	return writes
}

// Fails makes requests with the given verb and object name fail with err.
func (s *Server) Fails(verb, name string, err error) {
	s.PrependReactor(verb, "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		named, is := nameIn(action)
		return is && named == name, nil, err
	})
}

// nameIn returns the name of the object in a request.
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

func (s *Server) apply(patch clienttesting.PatchAction) (*unstructured.Unstructured, error) {
	next := &unstructured.Unstructured{}
	if err := json.Unmarshal(patch.GetPatch(), &next.Object); err != nil {
		return nil, err
	}
	existing, err := s.Tracker().Get(patch.GetResource(), patch.GetNamespace(), patch.GetName())
	switch before, _ := existing.(*unstructured.Unstructured); {
	case apierrors.IsNotFound(err):
		next.SetUID(types.UID(fmt.Sprintf("uid-%d", len(s.Writes))))
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
	next.SetResourceVersion(strconv.Itoa(len(s.Writes)))
	if err != nil {
		err = s.Tracker().Create(patch.GetResource(), next, patch.GetNamespace())
	} else {
		err = s.Tracker().Update(patch.GetResource(), next, patch.GetNamespace())
	}
	s.Applied(next.DeepCopy())
	return next, err
}
