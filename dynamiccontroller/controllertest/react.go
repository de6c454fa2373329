package controllertest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
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
	case action.GetSubresource() != "" && (action.GetSubresource() != "status" || !table.rules.status):
		return nil, errNoSubresource(action)
	}
	return table, nil
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
			return nil, apierrors.NewMethodNotSupported(action.Resource.GroupResource(), action.Verb)
		}
		w.manager = managerOf(action.CreateOptions.FieldManager)
		errs := metav1validation.ValidateCreateOptions(&action.CreateOptions)
		if err := checkOptions("CreateOptions", errs); err != nil {
			return nil, err
		}
		return s.createLocked(w, action.Object.DeepCopyObject().(*unstructured.Unstructured))
	case clienttesting.UpdateActionImpl:
		object := action.Object.DeepCopyObject().(*unstructured.Unstructured)
		w.manager = managerOf(action.UpdateOptions.FieldManager)
		w.key.Name = object.GetName()
		errs := metav1validation.ValidateUpdateOptions(&action.UpdateOptions)
		if err := checkOptions("UpdateOptions", errs); err != nil {
			return nil, err
		}
		return s.updateLocked(w, object)
	case clienttesting.PatchActionImpl:
		w.manager = managerOf(action.PatchOptions.FieldManager)
		w.key.Name = action.Name
		return s.patchRequestLocked(w, action)
	case clienttesting.DeleteActionImpl:
		w.key.Name = action.Name
		return nil, s.deleteLocked(w, action.DeleteOptions)
	case clienttesting.DeleteCollectionActionImpl:
		return nil, s.deleteCollectionLocked(w, action)
	}
	return nil, fmt.Errorf("controllertest: %T is not supported", action)
}

func (s *Server) deleteCollectionLocked(w write, action clienttesting.DeleteCollectionActionImpl) error {
	if err := checkDelete(action.DeleteOptions); err != nil {
		return err
	}
	list, err := s.listLocked(w.table, action.Namespace, action.ListOptions)
	if err != nil {
		return err
	}
	for i := range list.Items {
		w.key = keyOf(&list.Items[i])
		if err := s.deleteLocked(w, action.DeleteOptions); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
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

// patchRequestLocked performs a patch of any type.
func (s *Server) patchRequestLocked(
	w write, action clienttesting.PatchActionImpl,
) (*unstructured.Unstructured, error) {
	errs := metav1validation.ValidatePatchOptions(&action.PatchOptions, action.PatchType)
	switch action.PatchType {
	case types.ApplyPatchType, types.JSONPatchType, types.MergePatchType:
	default:
		return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch",
			action.Resource.GroupResource(), action.Name,
			"the server supports JSON patches, merge patches and server-side apply", 0, false)
	}
	if err := cmp.Or(checkBody(action.Patch), checkOptions("PatchOptions", errs)); err != nil {
		return nil, err
	}
	if action.PatchType == types.ApplyPatchType {
		applied, err := decodeYAML(action.Patch)
		if err != nil {
			return nil, err
		}
		return s.applyLocked(w, applied, ptr.Deref(action.PatchOptions.Force, false))
	}
	if !json.Valid(action.Patch) {
		return nil, apierrors.NewBadRequest("invalid JSON patch")
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
	if err == nil {
		err = w.decode(next)
	}
	if err != nil {
		return nil, apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
			field.Invalid(field.NewPath("patch"), string(data), err.Error()),
		})
	}
	return s.patchLocked(w, next)
}

func decodeYAML(patch []byte) (*unstructured.Unstructured, error) {
	data, err := yaml.YAMLToJSON(patch)
	if err != nil {
		return nil, apierrors.NewBadRequest("error encoding patch: " + err.Error())
	}
	applied, err := received(data)
	if err != nil {
		return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	return applied, nil
}

// patched returns the JSON of a patched object.
func patched(data []byte, action clienttesting.PatchActionImpl) ([]byte, error) {
	if action.PatchType == types.MergePatchType {
		if err := json.Unmarshal(action.Patch, &map[string]any{}); err != nil {
			return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
		}
		data, err := jsonpatch.MergePatch(data, action.Patch)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return data, nil
	}
	patch, err := jsonpatch.DecodePatch(action.Patch)
	if err != nil {
		return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	if data, err = patch.Apply(data); err != nil {
		return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "",
			err.Error(), 0, false)
	}
	return data, nil
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
	if err := checkListOptions(opts); err != nil {
		return nil, err
	}
	matches, err := matcher(action.Namespace, opts)
	if err != nil {
		return nil, err
	}
	if opts.SendInitialEvents != nil {
		return nil, apierrors.NewBadRequest("controllertest: streaming lists are not supported")
	}
	version, err := parseVersion(opts.ResourceVersion)
	if err != nil {
		return nil, unknownError("invalid resource version: %v", err)
	}
	w := s.watchLocked(table, version, matches, convert)
	go w.deliver(ctx, time.Duration(ptr.Deref(opts.TimeoutSeconds, 0))*time.Second)
	return w, nil
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

// errNoSubresource returns the error of an API server for a subresource that the type does not have.
func errNoSubresource(action clienttesting.Action) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, action.GetVerb(), schema.GroupResource{}, "",
		fmt.Sprintf("controllertest: %s have no subresource %s; of the subresources, only status is supported",
			action.GetResource().Resource, action.GetSubresource()), 0, false)
}
