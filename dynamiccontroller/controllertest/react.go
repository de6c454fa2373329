package controllertest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// react is the last reactor. It performs a request, unless it is a watch, which client.watch starts.
func (s *Server) react(action clienttesting.Action) (handled bool, result runtime.Object, err error) {
	if _, watch := action.(clienttesting.WatchActionImpl); watch {
		return true, nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	table, err := s.tableForLocked(action)
	if err != nil {
		return true, nil, err
	}
	switch action := action.(type) {
	case clienttesting.GetActionImpl:
		object := table.objects[types.NamespacedName{Namespace: action.Namespace, Name: action.Name}]
		if object == nil {
			return true, nil, apierrors.NewNotFound(action.Resource.GroupResource(), action.Name)
		}
		return true, object.DeepCopy(), nil
	case clienttesting.ListActionImpl:
		list, err := s.listLocked(table, action.Namespace, action.ListOptions)
		return true, list, err
	}
	object, err := s.writeLocked(table, action)
	if err != nil {
		return true, nil, err
	}
	if !isDryRun(action) {
		s.writes = append(s.writes, describe(action, object))
	}
	if object == nil {
		return true, nil, nil
	}
	return true, object.DeepCopy(), nil
}

// tableForLocked returns the table for a request, or the error for a path that the API server does not serve.
func (s *Server) tableForLocked(action clienttesting.Action) (*table, error) {
	table := s.tables[action.GetResource()]
	_, list := action.(clienttesting.ListActionImpl)
	_, watch := action.(clienttesting.WatchActionImpl)
	anyNamespace := list || watch
	switch {
	case table == nil,
		table.ClusterScoped && action.GetNamespace() != "",
		!table.ClusterScoped && action.GetNamespace() == "" && !anyNamespace:
		return nil, errNoSuchType(action.GetVerb())
	case action.GetSubresource() != "" && action.GetSubresource() != "status":
		return nil, errNoSubresource
	}
	return table, nil
}

func (s *Server) listLocked(
	t *table, namespace string, opts metav1.ListOptions,
) (*unstructured.UnstructuredList, error) {
	matches, err := matcher(namespace, opts)
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{Items: []unstructured.Unstructured{}}
	list.SetGroupVersionKind(t.GVR.GroupVersion().WithKind(t.Kind + "List"))
	list.SetResourceVersion(strconv.FormatInt(s.version, 10))
	for _, object := range t.list(matches) {
		list.Items = append(list.Items, *object.DeepCopy())
	}
	return list, nil
}

// writeLocked performs a request that writes. The returned object must not be modified. It is nil after a deletion.
func (s *Server) writeLocked(t *table, action clienttesting.Action) (*unstructured.Unstructured, error) {
	w := write{
		table: t, key: types.NamespacedName{Namespace: action.GetNamespace()}, subresource: action.GetSubresource(),
		dryRun: isDryRun(action),
	}
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		if w.subresource != "" {
			return nil, errNoSubresource
		}
		w.manager = managerOf(action.CreateOptions.FieldManager)
		return s.createLocked(w, action.Object.DeepCopyObject().(*unstructured.Unstructured))
	case clienttesting.UpdateActionImpl:
		object := action.Object.DeepCopyObject().(*unstructured.Unstructured)
		w.manager = managerOf(action.UpdateOptions.FieldManager)
		w.key.Name = object.GetName()
		return s.updateLocked(w, object)
	case clienttesting.PatchActionImpl:
		w.manager = managerOf(action.PatchOptions.FieldManager)
		w.key.Name = action.Name
		return s.patchLocked(w, action)
	case clienttesting.DeleteActionImpl:
		w.key.Name = action.Name
		return nil, s.deleteLocked(w, action.DeleteOptions.Preconditions)
	case clienttesting.DeleteCollectionActionImpl:
		matches, err := matcher(action.Namespace, action.ListOptions)
		if err != nil {
			return nil, err
		}
		for _, object := range t.list(matches) {
			w.key = keyOf(object)
			if err := s.deleteLocked(w, action.DeleteOptions.Preconditions); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	return nil, fmt.Errorf("controllertest: %T is not supported", action)
}

func isDryRun(action clienttesting.Action) bool {
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		return len(action.CreateOptions.DryRun) > 0
	case clienttesting.UpdateActionImpl:
		return len(action.UpdateOptions.DryRun) > 0
	case clienttesting.PatchActionImpl:
		return len(action.PatchOptions.DryRun) > 0
	case clienttesting.DeleteActionImpl:
		return len(action.DeleteOptions.DryRun) > 0
	case clienttesting.DeleteCollectionActionImpl:
		return len(action.DeleteOptions.DryRun) > 0
	}
	return false
}

func managerOf(name string) string {
	if name == "" {
		return fieldManager
	}
	return name
}

func (s *Server) patchLocked(w write, action clienttesting.PatchActionImpl) (*unstructured.Unstructured, error) {
	if action.PatchType == types.ApplyPatchType {
		data, err := yaml.YAMLToJSON(action.Patch)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		applied, err := received(data)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return s.applyLocked(w, applied, action.PatchOptions)
	}
	before := w.table.objects[w.key]
	if before == nil {
		return nil, w.notFound()
	}
	data, err := json.Marshal(before.Object)
	if err != nil {
		return nil, err
	}
	if data, err = patched(data, action); err != nil {
		return nil, err
	}
	next, err := received(data)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if next.GetResourceVersion() == "" {
		next.SetResourceVersion(before.GetResourceVersion())
	}
	return s.updateLocked(w, next)
}

// patched returns the JSON of a patched object.
func patched(data []byte, action clienttesting.PatchActionImpl) ([]byte, error) {
	failed := func(code int, err error) error {
		return apierrors.NewGenericServerResponse(code, "patch", action.Resource.GroupResource(), action.Name, err.Error(),
			0, false)
	}
	switch action.PatchType {
	case types.JSONPatchType:
		patch, err := jsonpatch.DecodePatch(action.Patch)
		if err != nil {
			return nil, failed(http.StatusBadRequest, err)
		}
		if data, err = patch.Apply(data); err != nil {
			return nil, failed(http.StatusUnprocessableEntity, err)
		}
		return data, nil
	case types.MergePatchType:
		data, err := jsonpatch.MergePatch(data, action.Patch)
		if err != nil {
			return nil, failed(http.StatusBadRequest, err)
		}
		return data, nil
	default:
		return nil, failed(http.StatusUnsupportedMediaType,
			errors.New("the server supports JSON patches, merge patches and server-side apply"))
	}
}

// watch starts a watch that a client has requested.
func (s *Server) watch(
	ctx context.Context, action clienttesting.WatchActionImpl, convert func(*unstructured.Unstructured) runtime.Object,
) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	table, err := s.tableForLocked(action)
	if err != nil {
		return nil, err
	}
	opts := action.ListOptions
	matches, err := matcher(action.Namespace, opts)
	if err != nil {
		return nil, err
	}
	if opts.SendInitialEvents != nil {
		return nil, apierrors.NewBadRequest("sendInitialEvents is not supported")
	}
	var version int64
	if opts.ResourceVersion != "" {
		if version, err = strconv.ParseInt(opts.ResourceVersion, 10, 64); err != nil {
			return nil, apierrors.NewBadRequest("invalid resourceVersion: " + opts.ResourceVersion)
		}
	}
	w := s.watchLocked(table, version, matches, convert)
	go w.deliver(ctx, time.Duration(ptr.Deref(opts.TimeoutSeconds, 0))*time.Second)
	return w, nil
}

// matcher returns a function that reports whether an object belongs to a list or watch.
func matcher(namespace string, opts metav1.ListOptions) (func(*unstructured.Unstructured) bool, error) {
	selector, err := labels.Parse(opts.LabelSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	fieldSelector, err := fields.ParseSelector(opts.FieldSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	for _, requirement := range fieldSelector.Requirements() {
		if requirement.Field != "metadata.name" && requirement.Field != "metadata.namespace" {
			return nil, apierrors.NewBadRequest("field label not supported: " + requirement.Field)
		}
	}
	return func(object *unstructured.Unstructured) bool {
		return (namespace == "" || object.GetNamespace() == namespace) &&
			selector.Matches(labels.Set(object.GetLabels())) && fieldSelector.Matches(fields.Set{
			"metadata.name": object.GetName(), "metadata.namespace": object.GetNamespace(),
		})
	}, nil
}

// describe returns the entry of a write for TakeWrites.
func describe(action clienttesting.Action, written *unstructured.Unstructured) string {
	verb, name := action.GetVerb(), ""
	if patch, ok := action.(clienttesting.PatchAction); ok && patch.GetPatchType() == types.ApplyPatchType {
		verb = "apply"
	}
	if subresource := action.GetSubresource(); subresource != "" {
		verb += " " + subresource + " of"
	}
	if written != nil {
		name = " " + written.GetName()
	} else if named, ok := action.(interface{ GetName() string }); ok {
		name = " " + named.GetName()
	}
	return verb + " " + action.GetResource().Resource + name
}

// errNoSuchType returns the error of an API server that does not serve a type. It contains no name.
func errNoSuchType(verb string) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, verb, schema.GroupResource{}, "", "404 page not found",
		0, true)
}

var errNoSubresource = errors.New("controllertest: of the subresources, only status is supported, without create")
